"""Rounds on devices: what `Rounds` does in shared memory, done by a process group of torch's own (NCCL).

The buckets lie on the device and are summed in place. Who gives what is told beside them, through the ring on
the CPU: that names a worker that has died, before anybody waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import distributed as dist

from argosy.ring.buckets import Bucket
from argosy.ring.group import RingGroup
from argosy.ring.notes import ABSENT, DENSE, NO_WISHES, RoundOutcome, Said, Says, Wishes, conclude, merge
from argosy.ring.reduction import combine, nothing


class DeviceRounds:
    """The rounds of these buckets among all ranks; `process_group` sums tensors of `device`."""

    stays = True  # nobody can leave such a group: who is done gives nothing until all are
    keeps_given = False  # what is given is summed in its place

    def __init__(
        self,
        ring: RingGroup,
        process_group: Any,
        buckets: Sequence[Bucket[torch.dtype]],
        device: torch.device,
    ) -> None:
        self._ring = ring
        self._group = process_group
        self.buckets = tuple(buckets)
        self._flats = [torch.zeros(bucket.count, dtype=bucket.dtype, device=device) for bucket in buckets]
        self._says = Says.GIVES
        self._wishes = NO_WISHES
        self._mark = 0
        self._notes: list[int] = []
        self._works: list[Any] = []

    def given(self, bucket: int) -> torch.Tensor:
        """Where this rank's part of a bucket goes."""
        return self._flats[bucket]

    result = given

    def begin(self, says: Says, mark: int, wishes: Wishes = NO_WISHES) -> None:
        """As in `Rounds`."""
        self._says = says
        self._wishes = wishes
        self._mark = mark
        self._notes = []
        self._works = []

    @property
    def entered(self) -> int:
        """How many buckets of this round have been entered."""
        return len(self._works)

    def enter(self, kinds: Sequence[int] | None = None) -> None:
        """As in `Rounds`."""
        bucket = self.buckets[self.entered]
        flat = self._flats[self.entered]
        if not self._counts(bucket, kinds):
            flat.fill_(nothing(bucket.rule, flat.dtype))
        self._notes += [DENSE] * len(bucket.pieces) if kinds is None else kinds
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX if bucket.rule == "max" else dist.ReduceOp.SUM)
        whole = flat.view(torch.uint8) if flat.dtype == torch.bool else flat
        self._works.append(self._group.allreduce([whole], options))

    def _counts(self, bucket: Bucket[torch.dtype], kinds: Sequence[int] | None) -> bool:
        """Whether what this rank has of a bucket is a part of its result."""
        if bucket.rule == "first":
            return self._ring.rank == 0
        if bucket.rule == "mean":
            return self._says == Says.GIVES
        return kinds is None or ABSENT not in kinds

    def kinds(self, bucket: int) -> list[int]:
        """As in `Rounds`."""
        begin = sum(len(each.pieces) for each in self.buckets[:bucket])
        return self._notes[begin : begin + len(self.buckets[bucket].pieces)]

    def advance(self) -> None:
        """Nothing to do: the device does it."""

    def finish(self, take: Callable[[int, RoundOutcome], None]) -> RoundOutcome:
        """As in `Rounds`."""
        outcome, brought = self._agree()
        for number, (bucket, work) in enumerate(zip(self.buckets, self._works, strict=True)):
            work.wait()
            if outcome.givers:
                if bucket.rule in ("mean", "latest"):
                    parts = outcome.givers if bucket.rule == "mean" else brought[number]
                    combine(self._flats[number], [self._flats[number]], "mean", parts)
                take(number, outcome)
        return outcome

    def _agree(self) -> tuple[RoundOutcome, list[int]]:
        """What the round came to, and of each bucket how many have something of it."""
        mine = torch.tensor([self._says, self._wishes, self._mark, *self._notes], dtype=torch.int64)
        rows = [torch.empty_like(mine) for _ in range(self._ring.size)]
        self._ring.all_gather(rows, mine)
        told = [row.tolist() for row in rows]
        said = {rank: Said(Says(row[0]), Wishes(row[1]), row[2]) for rank, row in enumerate(told)}
        given = [row[3:] for row in told if row[0] == Says.GIVES]
        pieces = [merge(column) for column in zip(*given, strict=True)] or [0] * len(self._notes)
        begins = accumulate((len(bucket.pieces) for bucket in self.buckets), initial=3)
        brought = [
            sum(row[at] != ABSENT for row in told) for at, _ in zip(begins, self.buckets, strict=False)
        ]
        return conclude(said, pieces), brought

    def fail(self, reason: str) -> None:
        """The ring on the CPU tells the others."""

    def close(self) -> None:
        """Let go of the group."""
        self._works = []
        self._group = None
