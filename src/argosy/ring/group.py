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
from torch.distributed import Store

from argosy.errors import JobFailed
from argosy.events import say
from argosy.ring.among_hosts import Leaders, gloo_groups, mpi_groups, require_insecure
from argosy.ring.call_check import Call, Disagreement, call
from argosy.ring.collectives import HostRing, ring_bytes
from argosy.ring.host_ranks import Mailbox, RanksByHost, assemble, share
from argosy.ring.reduction import NARROW, Operation, combine
from argosy.ring.transport_choice import Among, among_hosts, describe

# What travels between hosts at once.
PIECE_BYTES = 8 * 2**20
_BARRIER = call("barrier")
_GO_ON = call("agreed with the other hosts")


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


def enter(store: Store, member: Membership) -> tuple[Mailbox, RanksByHost, Leaders | None]:
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


def chosen(company: RanksByHost) -> Among:
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
        host = share(mailbox, self.company, room)
        self.board = host.board
        self._ring = HostRing(host)
        self.names = member.names
        self._begun = 0  # calls over several hosts
        self._telling: Callable[[], object] | None = None  # a refusal on its way to the other hosts
        if self.rank == 0 and self.size > 1 and not quiet:
            say(describe(self.size, len(self.company.hosts), chosen(self.company)))

    @property
    def _alone(self) -> bool:
        return len(self.company.hosts) == 1

    # --- the same call on every rank ----------------------------------------------------------------------
    @property
    def turns(self) -> int:
        """How many calls this rank has begun, refused ones too."""
        return self._ring.turns if self._alone else self._begun

    def refuse(self, name: str, reason: str) -> None:
        """Have the others' next call fail with this reason, as this rank cannot make it; waits for nobody."""
        self._begun += 1
        if self._alone or len(self.company.mine) > 1:
            self._ring.refuse(name, reason)
        if self.leaders is not None:
            self._settle_refusal()
            self._telling = self.leaders.tell(0, f"refused ({reason})")

    def fail(self, reason: str) -> None:
        """This rank failed in the middle of a call: the others hear why, and the group is of no more use."""
        self.board.fail(reason)
        if self.leaders is not None:
            self.leaders.close()  # the other hosts notice by their connections

    def _settle_refusal(self) -> None:
        if self._telling is not None:
            self._telling()
            self._telling = None

    def _agree(self, made: Call) -> None:
        """Over several hosts: find out whether all ranks make this call, before anything travels."""
        self._begun += 1
        several = len(self.company.mine) > 1
        refused: Disagreement | None = None
        if several:
            try:
                self._ring.agree(made)
            except Disagreement as error:
                refused = error
        if self.leaders is not None:
            self._settle_refusal()
            told = (made.word, made.text) if refused is None else (0, f"refused ({refused})")
            said = self.leaders.tell(*told)()
            if refused is None and any(word != made.word for word, _ in said):
                leaders = [self.names[ranks[0]] for ranks in self.company.hosts]
                texts = [(name, text) for name, (_, text) in zip(leaders, said, strict=True)]
                refused = Disagreement(made.name, texts)
                if several:
                    self._ring.refuse(made.name, str(refused))
                raise refused
        if refused is not None:
            raise refused
        if several:
            self._ring.agree(_GO_ON)

    # --- collectives --------------------------------------------------------------------------------------
    def all_reduce(self, flat: torch.Tensor, operation: Operation = "sum", root: int | None = None) -> None:
        """All ranks' tensors combined, in each; with a root, in that rank only."""
        if self._alone:
            self._ring.all_reduce(flat, operation, self.size, root)
            return
        name = "all_reduce" if root is None else "reduce"
        self._agree(call(name, flat.dtype, flat.numel(), operation, root))
        if root is None or root == self.rank:
            self._all_reduce(flat, operation)
        else:
            self._all_reduce(flat.clone(), operation)

    def _all_reduce(self, flat: torch.Tensor, operation: Operation) -> None:
        """Over several hosts."""
        if flat.dtype in NARROW:  # rounded once, and not on each host
            wide = flat.float()
            self._all_reduce(wide, operation)
            flat.copy_(wide)
            return
        # Piece by piece, so that the hosts' sums travel while the next ones are made and the last ones taken.
        local: Operation = "sum" if operation == "mean" else operation
        under_way = []
        for piece in flat.split(PIECE_BYTES // flat.element_size()) if flat.numel() else ():
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

    def broadcast(self, flat: torch.Tensor, root: int, name: str = "broadcast") -> None:
        """The root's tensor, in each."""
        if self._alone:
            self._ring.broadcast(flat, root, name)
            return
        self._agree(call(name, flat.dtype, flat.numel(), root=root))
        self._broadcast(flat, root)

    def _broadcast(self, flat: torch.Tensor, root: int) -> None:
        """Over several hosts."""
        hosts = self.company.hosts
        there = next(number for number, ranks in enumerate(hosts) if root in ranks)
        if self.rank in hosts[there]:
            self._ring.broadcast(flat, hosts[there].index(root))
        if self.leaders is not None:
            self.leaders.broadcast(flat, there)
        if self.rank not in hosts[there]:
            self._ring.broadcast(flat, 0)

    def all_gather(
        self, outputs: Sequence[torch.Tensor], flat: torch.Tensor, name: str = "all_gather"
    ) -> None:
        """Every rank's tensor, all of one size, in each."""
        if self._alone:
            self._ring.all_gather(outputs, flat, name)
            return
        self._agree(call(name, flat.dtype, flat.numel()))
        outputs[self.rank].copy_(flat)
        for rank, output in enumerate(outputs):
            self._broadcast(output, rank)

    def reduce_scatter(
        self, out: torch.Tensor, inputs: Sequence[torch.Tensor], operation: Operation = "sum"
    ) -> None:
        """What all ranks have for this one, combined; the ranks' parts may differ in size."""
        if self._alone:
            self._ring.reduce_scatter(out, inputs, operation, self.size)
            return
        sizes = tuple(each.numel() for each in inputs)
        self._agree(call("reduce_scatter", out.dtype, sizes, operation))
        everything = torch.cat(list(inputs))
        self._all_reduce(everything, operation)
        out.copy_(everything.split(sizes)[self.rank])

    def exchange(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        name: str = "all_to_all",
        most: int | None = None,
        root: int | None = None,
    ) -> None:
        """`outputs[r]` becomes what rank r has given as input for this one.

        An empty list gives or takes nothing. `most`: the elements of the largest of all, where every rank
        knows it.
        """
        given = inputs or [outputs[0][:0]] * self.size
        taken = outputs or [inputs[0][:0]] * self.size
        dtype = given[0].dtype
        if most is None:
            most = self._largest(f"{name} of {dtype}", given, taken)
        made = call(name, dtype, most, root=root)
        if self._alone:
            self._ring.exchange(taken, given, most, made)
            return
        self._agree(made)
        for rank in range(self.size):
            everything = given[0].new_zeros((self.size, most))
            if rank == self.rank:
                for row, each in zip(everything, given, strict=True):
                    row[: each.numel()].copy_(each)
            self._broadcast(everything.view(-1), rank)
            taken[rank].copy_(everything[self.rank][: taken[rank].numel()])

    def _largest(self, name: str, given: Sequence[torch.Tensor], taken: Sequence[torch.Tensor]) -> int:
        """The largest part of all, once each rank is known to take what the others have for it."""
        mine = torch.tensor([each.numel() for each in (*given, *taken)])
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        self.all_gather(rows, mine, name)
        gives, takes = torch.stack(rows).view(self.size, 2, self.size).unbind(1)
        for source, to in (gives != takes.t()).nonzero().tolist():
            raise Disagreement(
                name,
                [
                    (self.names[source], f"{int(gives[source, to])} elements for {self.names[to]}"),
                    (self.names[to], f"room for {int(takes[to, source])} from {self.names[source]}"),
                ],
            )
        return int(gives.max())

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self._alone:
            self._ring.agree(_BARRIER)
        else:
            self._agree(_BARRIER)

    def close(self) -> None:
        """Leave."""
        self._ring.close()
        if self.leaders is not None:
            self.leaders.close()
