"""Among hosts: Gloo or MPI, between the leaders of the hosts only. Inside a host nothing of this is used.

Gloo has neither key nor encryption, so going beyond one host has to be asked for: `--insecure`.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import PrefixStore, Store

from argosy.errors import ConfigError, JobFailed, TaskLost
from argosy.ring.host_ranks import RanksByHost
from argosy.ring.reduction import Operation
from argosy.torch_private import gloo_options

_REDUCE: dict[Operation, Any] = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "and": dist.ReduceOp.BAND,
    "or": dist.ReduceOp.BOR,
    "xor": dist.ReduceOp.BXOR,
}
# A worker that fails tells why, but its connections may end before that, in seconds.
_TIME_TO_TELL = 1.0
_LOOK_AGAIN = 0.05
_TOLD = struct.Struct("q256s")


def require_insecure(company: RanksByHost, insecure: bool) -> None:
    """Refuse several hosts, unless told so."""
    if len(company.hosts) > 1 and not insecure:
        raise ConfigError(
            "ring",
            "all ranks on one host",
            f"{len(company.hosts)} hosts",
            "Gloo has neither key nor encryption: on a network that you trust, add --insecure",
        )


def address_towards(host: str) -> str:
    """This machine's address on the way to `host`."""
    found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
        probe.connect(found[4])
        return str(probe.getsockname()[0])


def gloo_groups(store: Store, company: RanksByHost, towards: str, timeout: float) -> list[Any]:
    """Two groups of the leaders: for tensors, and for what is noted beside them. Made by each leader."""
    named = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    make = dist.ProcessGroupGloo.create_device
    devices = [make(interface=name) for name in named] or [make(hostname=address_towards(towards))]
    options = gloo_options(timeout, devices, threads=2)
    host = company.hosts.index(company.mine)
    return [
        dist.ProcessGroupGloo(PrefixStore(name, store), host, len(company.hosts), options)
        for name in ("leaders", "notes")
    ]


def mpi_groups(ranks: Sequence[int]) -> list[Any]:
    """The same by MPI, which numbers the ranks as the ring does. Made by every rank."""
    mpi: Any = dist.ProcessGroupMPI
    return [mpi.create(list(ranks)) for _ in range(2)]


class Leaders:
    """The leaders of the hosts."""

    def __init__(self, groups: Sequence[Any], company: RanksByHost, names: Sequence[str]) -> None:
        self.on_trouble: Callable[[], JobFailed | None] | None = None
        self._names = [names[ranks[0]] for ranks in company.hosts]
        self._host = company.hosts.index(company.mine)
        self._tensors, self._notes = groups

    def begin_all_reduce(self, tensor: torch.Tensor, operation: Operation) -> Callable[[], None]:
        """Combine in place with the other hosts', in a thread of Gloo's; call the result to wait for it."""
        return self._begin(self._tensors, tensor, operation)

    def begin_noting(self, tensor: torch.Tensor) -> Callable[[], None]:
        """A sum beside the others, in an order of its own: it does not wait behind large ones."""
        return self._begin(self._notes, tensor, "sum")

    def _begin(self, group: Any, tensor: torch.Tensor, operation: Operation) -> Callable[[], None]:
        options = dist.AllreduceOptions()
        options.reduceOp = _REDUCE[operation]
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        work = group.allreduce([real], options)
        return lambda: self._run(work.wait)

    def all_reduce_narrow(self, tensor: torch.Tensor, wire: torch.dtype) -> None:
        """Sum in place; on the way `wire`, every sum in the tensor's own precision.

        Each host sums a slice of what all send it, and sends the result to all.
        """
        count = len(self._names)
        size = -(-tensor.numel() // count)
        given = torch.zeros(count * size, dtype=wire)
        given[: tensor.numel()].copy_(tensor)
        taken = torch.empty_like(given)
        self._run(lambda: self._tensors.alltoall_base(taken, given, [], []).wait())
        first, *rest = taken.split(size)
        total = first.to(torch.promote_types(tensor.dtype, torch.float32))
        for part in rest:
            total = total.add_(part)
        parts = [torch.empty(size, dtype=wire) for _ in range(count)]
        self._run(lambda: self._tensors.allgather([parts], [total.to(wire)]).wait())
        tensor.copy_(torch.cat(parts)[: tensor.numel()])

    def broadcast(self, tensor: torch.Tensor, host: int) -> None:
        """The tensor of one host's leader, to all."""
        self._run(lambda: self._tensors.broadcast(tensor, host).wait())

    def tell(self, word: int, text: str) -> Callable[[], list[tuple[int, str]]]:
        """Tell all hosts a number and a text, cut to what fits; what each has told is the answer's result."""
        mine = torch.frombuffer(bytearray(_TOLD.pack(word, text.encode())), dtype=torch.uint8)
        told = [torch.empty_like(mine) for _ in self._names]
        work = self._notes.allgather([told], [mine])

        def hear() -> list[tuple[int, str]]:
            self._run(work.wait)
            found = (_TOLD.unpack(bytes(each.tolist())) for each in told)
            return [(number, raw.rstrip(b"\0").decode(errors="replace")) for number, raw in found]

        return hear

    def close(self) -> None:
        """End the groups' threads, while there is still somebody to wait for them."""
        self._tensors = self._notes = None

    def _run(self, action: Callable[[], object]) -> None:
        try:
            action()
        except RuntimeError as error:
            if (cause := self._first_cause()) is not None:
                raise cause from None
            others = ", ".join(name for host, name in enumerate(self._names) if host != self._host)
            raise TaskLost(others, f"the hosts lost their connection: {str(error).splitlines()[0]}") from None

    def _first_cause(self) -> JobFailed | None:
        """Why a connection may have ended: what a failing worker has told, if it had the time to."""
        deadline = time.monotonic() + _TIME_TO_TELL
        while self.on_trouble is not None:
            cause = self.on_trouble()
            if cause is not None or time.monotonic() > deadline:
                return cause
            time.sleep(_LOOK_AGAIN)
        return None
