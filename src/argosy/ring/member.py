"""A worker's membership in the ring: made by `join()`, left at the end, or failed.

Holds the group of all ranks, for small values and for what everybody starts with, and opens the rounds in
which gradients are averaged. A failure is told to all: on this host by the board, elsewhere by the store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch import distributed as dist
from torch.distributed import PrefixStore, Store

from argosy.errors import UNDECODABLE, JobFailed
from argosy.events import say
from argosy.ring.buckets import Bucket
from argosy.ring.device_rounds import DeviceRounds
from argosy.ring.group import Membership, RingGroup
from argosy.ring.host_ranks import Mailbox, share
from argosy.ring.notes import NO_WISHES, Wishes
from argosy.ring.rounds import Rounds, room
from argosy.ring.transport_choice import for_tensors

_FAILED = "failed"
_CPU = torch.device("cpu")


def device_group(store: Store, rank: int, size: int) -> Any:
    """The process group that sums on devices."""
    nccl: Any = dist.ProcessGroupNCCL
    return nccl(store, rank, size, nccl.Options())


class RingMember:
    """One worker of the ring."""

    def __init__(self, store: Store, member: Membership) -> None:
        self._store = store
        self._member = member
        self.group = RingGroup(store, member, on_trouble=self.first_cause)
        self._opened: list[Rounds | DeviceRounds] = []
        self._on_leaving: list[Callable[[], None]] = []
        self.wishes = NO_WISHES  # what this worker wants of all, and has not said yet
        self._over = False

    @property
    def rank(self) -> int:
        """Which worker this is."""
        return self._member.rank

    @property
    def names(self) -> tuple[str, ...]:
        """What the workers are called."""
        return self._member.names

    @property
    def several_hosts(self) -> bool:
        """Whether the ring goes beyond this host."""
        return len(self.group.company.hosts) > 1

    def gather(self, value: bytes) -> list[bytes]:
        """Every worker's value, in order."""
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.group.size)]
        self.group.all_gather(sizes, torch.tensor([len(value)]))
        longest = max(int(size) for size in sizes)
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(value)] = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else 0
        taken = [torch.empty(longest, dtype=torch.uint8) for _ in sizes]
        self.group.all_gather(taken, mine)
        return [bytes(each.tolist())[: int(size)] for each, size in zip(taken, sizes, strict=True)]

    def tell(self, what: str, value: str) -> None:
        """Leave a value where the others find it; waits for nobody."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"{what}/{self.rank}", value)

    def told(self, what: str) -> dict[int, str]:
        """What the workers have left under this name so far."""
        found = {rank: self.told_by(rank, what) for rank in range(self.group.size)}
        return {rank: value for rank, value in found.items() if value is not None}

    def told_by(self, rank: int, what: str) -> str | None:
        """What a worker has left under this name, if anything."""
        with contextlib.suppress(RuntimeError):
            if self._store.check([f"{what}/{rank}"]):
                return self._store.get(f"{what}/{rank}").decode()
        return None

    def forget(self, rank: int, what: str) -> None:
        """Remove what a worker has left under this name."""
        with contextlib.suppress(RuntimeError):
            self._store.delete_key(f"{what}/{rank}")

    def take_wishes(self) -> Wishes:
        """What this worker wants of all: they hear of it in the round that begins."""
        wishes, self.wishes = self.wishes, NO_WISHES
        return wishes

    def open_rounds(
        self,
        buckets: Sequence[Bucket[torch.dtype]],
        wire: torch.dtype | None,
        device: torch.device = _CPU,
    ) -> Rounds | DeviceRounds:
        """Rounds of these buckets, which come from that device; every worker opens the same ones."""
        store = PrefixStore(f"rounds/{len(self._opened)}", self._store)
        company, member = self.group.company, self._member
        rounds: Rounds | DeviceRounds
        if for_tensors(device.type, dist.is_nccl_available()) == "NCCL":
            if self.rank == 0 and not self._opened:
                say(f"gradients on {device.type}: NCCL")
            group = device_group(store, self.rank, self.group.size)
            rounds = DeviceRounds(self.group, group, buckets, device)
        else:
            mailbox = Mailbox(store, member.names, member.timeout)
            host = share(mailbox, company, room(buckets, company), may_leave=True)
            rounds = Rounds(host, buckets, company, self.group.leaders, wire)
        self._opened.append(rounds)
        return rounds

    def on_leaving(self, callback: Callable[[], None]) -> None:
        """Have this called when the worker leaves."""
        self._on_leaving.append(callback)

    def first_cause(self) -> JobFailed | None:
        """What another worker has told as the reason of its failure, if anything."""
        with contextlib.suppress(RuntimeError, *UNDECODABLE):
            if self._store.check([_FAILED]):
                task, reason = msgspec.json.decode(self._store.get(_FAILED), type=tuple[str, str])
                return JobFailed(task, reason)
        return None

    def leave(self) -> None:
        """Done."""
        if not self._over:
            self._over = True
            for callback in self._on_leaving:
                callback()
            for rounds in self._opened:
                rounds.close()
            self.group.close()

    def fail(self, reason: str) -> None:
        """This worker failed: everybody hears why."""
        if self._over:
            return
        for rounds in self._opened:
            rounds.fail(reason)
        self.group.board.fail(reason)
        if self.several_hosts:
            name = self._member.names[self._member.rank]
            with contextlib.suppress(RuntimeError):
                self._store.compare_set(_FAILED, "", msgspec.json.encode((name, reason)).decode())
