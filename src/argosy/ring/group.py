"""A group of ranks, wherever they are: shared memory inside a host, Gloo or MPI among hosts.

What the torch.distributed backend and the replicas both stand on. Tensors are one-dimensional, contiguous and
on the CPU; every rank calls the same methods in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import Store

from argosy.errors import JobFailed
from argosy.events import say
from argosy.ring.collectives import HostRing, ring_bytes
from argosy.ring.hosts import Leaders, gloo_groups, mpi_groups, require_insecure
from argosy.ring.meeting import Company, Mailbox, assemble, share
from argosy.ring.sums import NARROW, Operation, combine
from argosy.ring.ways import Among, among_hosts, describe

# What travels between hosts at once.
PIECE_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Membership:
    """How a rank comes to its group: who it is, what the ranks are called, and where the store is.

    `towards`: a host that all can reach, by which each finds its own address.
    """

    rank: int
    names: tuple[str, ...]
    timeout: float
    insecure: bool = False
    towards: str = "localhost"


def enter(store: Store, member: Membership) -> tuple[Mailbox, Company, Leaders | None]:
    """Wait for all ranks, and connect the hosts."""
    mailbox = Mailbox(store, member.names, member.timeout)
    company = assemble(mailbox, member.rank, len(member.names))
    require_insecure(company, member.insecure)
    if len(company.hosts) == 1:
        return mailbox, company, None
    if chosen(company) == "MPI":  # every rank has a part in making it
        groups = mpi_groups([ranks[0] for ranks in company.hosts])
    elif company.leads:
        groups = gloo_groups(store, company, member.towards, member.timeout)
    return mailbox, company, Leaders(groups, company, member.names) if company.leads else None


def chosen(company: Company) -> Among:
    """What the hosts speak with each other."""
    return among_hosts(sum(map(len, company.hosts)), dist.is_mpi_available(), os.environ)


class RingGroup:
    """The collectives of a group."""

    def __init__(
        self,
        store: Store,
        member: Membership,
        on_trouble: Callable[[], JobFailed | None] | None = None,
        quiet: bool = False,
    ) -> None:
        mailbox, self.company, self.leaders = enter(store, member)
        if self.leaders is not None:
            self.leaders.on_trouble = on_trouble
        self.rank = member.rank
        self.size = len(member.names)
        room = ring_bytes(len(self.company.mine))
        host = share(mailbox, self.company, room, member.names, member.timeout)
        self.board = host.board
        self._ring = HostRing(host)
        if self.rank == 0 and self.size > 1 and not quiet:
            say(describe(self.size, len(self.company.hosts), chosen(self.company)))

    @property
    def _alone(self) -> bool:
        return len(self.company.hosts) == 1

    def all_reduce(self, flat: torch.Tensor, operation: Operation = "sum", keep: bool = True) -> None:
        """All ranks' tensors combined, in each; where `keep` is not, the tensor stays as it is."""
        if self._alone:
            self._ring.all_reduce(flat, operation, self.size, keep)
            return
        if flat.dtype in NARROW:  # rounded once, and not on each host
            wide = flat.float()
            self.all_reduce(wide, operation)
            if keep:
                flat.copy_(wide)
            return
        # Piece by piece, so that the hosts' sums travel while the next ones are made and the last ones taken.
        result = flat if keep else flat.clone()
        local: Operation = "sum" if operation == "mean" else operation
        under_way = []
        for piece in result.split(PIECE_BYTES // flat.element_size()) if flat.numel() else ():
            if len(self.company.mine) > 1:
                self._ring.all_reduce(piece, local, 1)
            wait = None if self.leaders is None else self.leaders.begin_all_reduce(piece, local)
            under_way.append((piece, wait))
        for piece, wait in under_way:
            if wait is not None:
                wait()
            if len(self.company.mine) > 1:
                self._ring.broadcast(piece, 0)
            if operation == "mean":
                combine(piece, [piece], "mean", self.size)

    def broadcast(self, flat: torch.Tensor, root: int) -> None:
        """The root's tensor, in each."""
        hosts = self.company.hosts
        there = next(number for number, ranks in enumerate(hosts) if root in ranks)
        if self.rank in hosts[there]:
            self._ring.broadcast(flat, hosts[there].index(root))
        if self.leaders is not None:
            self.leaders.broadcast(flat, there)
        if self.rank not in hosts[there]:
            self._ring.broadcast(flat, 0)

    def all_gather(self, outputs: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
        """Every rank's tensor, all of one size, in each."""
        if self._alone:
            self._ring.all_gather(outputs, flat)
            return
        outputs[self.rank].copy_(flat)
        for rank, output in enumerate(outputs):
            self.broadcast(output, rank)

    def reduce_scatter(
        self, out: torch.Tensor, inputs: Sequence[torch.Tensor], operation: Operation = "sum"
    ) -> None:
        """What all ranks have for this one, combined."""
        if self._alone:
            self._ring.reduce_scatter(out, inputs, operation, self.size)
            return
        everything = torch.cat(list(inputs))
        self.all_reduce(everything, operation)
        out.copy_(everything[self.rank * out.numel() :][: out.numel()])

    def exchange(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], most: int | None = None
    ) -> None:
        """`outputs[r]` becomes what rank r has given as input for this one.

        An empty list gives or takes nothing. `most`: the elements of the largest of all, where every rank
        knows it.
        """
        given = inputs or [outputs[0][:0]] * self.size
        taken = outputs or [inputs[0][:0]] * self.size
        if most is None:
            largest = torch.tensor([max(each.numel() for each in (*given, *taken))])
            self.all_reduce(largest, "max")
            most = int(largest)
        if self._alone:
            self._ring.exchange(taken, given, most)
            return
        for rank in range(self.size):
            everything = given[0].new_zeros((self.size, most))
            if rank == self.rank:
                for row, each in zip(everything, given, strict=True):
                    row[: each.numel()].copy_(each)
            self.broadcast(everything.view(-1), rank)
            taken[rank].copy_(everything[self.rank][: taken[rank].numel()])

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._ring.barrier()
        if not self._alone:
            if self.leaders is not None:
                self.leaders.barrier()
            self._ring.barrier()

    def close(self) -> None:
        """Leave."""
        self._ring.close()
        if self.leaders is not None:
            self.leaders.close()
