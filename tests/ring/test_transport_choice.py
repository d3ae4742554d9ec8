"""Which way the bytes go."""

from __future__ import annotations

import pytest

from argosy.ring.transport_choice import among_hosts, describe, for_tensors


@pytest.mark.parametrize(
    ("has_mpi", "environ", "expected"),
    [
        (False, {"OMPI_COMM_WORLD_SIZE": "4"}, "Gloo"),
        (True, {}, "Gloo"),
        (True, {"OMPI_COMM_WORLD_SIZE": "4"}, "MPI"),
        (True, {"PMI_SIZE": "4"}, "MPI"),
        (True, {"PMI_SIZE": "8"}, "Gloo"),
    ],
)
def test_mpi_among_hosts_if_torch_has_it_and_mpirun_started_the_ring(
    has_mpi: bool, environ: dict[str, str], expected: str
) -> None:
    assert among_hosts(4, has_mpi, environ) == expected


def test_nccl_for_cuda_if_torch_has_it() -> None:
    assert for_tensors("cuda", has_nccl=True) == "NCCL"
    assert for_tensors("cuda", has_nccl=False) == "shared memory"
    assert for_tensors("cpu", has_nccl=True) == "shared memory"


def test_it_is_said_in_one_line() -> None:
    assert describe(2, 1, "Gloo") == "ring of 2: shared memory"
    assert describe(4, 2, "MPI") == "ring of 4 on 2 hosts: shared memory inside a host, MPI among hosts"
