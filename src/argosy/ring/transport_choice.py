"""Which way the bytes go: on paper, so that the choice can be looked at without the machines.

Inside a host and on the CPU: shared memory. Among hosts: MPI, where torch was built with it and mpirun has
started exactly the ring's ranks, else Gloo. CUDA tensors: NCCL, if torch has it, else over the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Among = Literal["Gloo", "MPI"]
Tensors = Literal["shared memory", "NCCL"]
# How many ranks mpirun has started: Open MPI, and MPICH and what comes from it.
_MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def among_hosts(ranks: int, has_mpi: bool, environ: Mapping[str, str]) -> Among:
    """What the hosts speak with each other."""
    started = {environ[name] for name in _MPI_SIZES if name in environ}
    return "MPI" if has_mpi and str(ranks) in started else "Gloo"


def for_tensors(device: str, has_nccl: bool) -> Tensors:
    """How gradients on devices of that type are averaged."""
    return "NCCL" if device == "cuda" and has_nccl else "shared memory"


def describe(ranks: int, hosts: int, among: Among) -> str:
    """In a few words."""
    if hosts == 1:
        return f"ring of {ranks}: shared memory"
    return f"ring of {ranks} on {hosts} hosts: shared memory inside a host, {among} among hosts"
