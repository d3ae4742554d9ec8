"""What the coordinator counts of every worker: a few additions a push, for whoever asks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import msgspec

from argosy.protocol.asking import WorkerStatus
from argosy.protocol.decisions import Answer, Apply, Decision


class _Counts:
    """One worker's."""

    __slots__ = ("answers", "applied", "heard", "logged", "numbers", "staleness", "total_staleness")

    def __init__(self) -> None:
        self.applied = 0
        self.answers = {"applied": 0, "dropped": 0, "folded": 0, "skipped": 0}
        self.staleness = 0
        self.total_staleness = 0
        self.heard: float | None = None
        self.numbers: Mapping[str, float] = {}
        self.logged = 0


class CountsValue(msgspec.Struct, array_like=True):
    """A worker's counts as plain data."""

    applied: int
    answers: dict[str, int]
    staleness: int
    total_staleness: int
    numbers: dict[str, float]
    logged: int


class Tally:
    """The counts of all workers."""

    def __init__(self, workers: int) -> None:
        self._counts = [_Counts() for _ in range(workers)]

    def value(self) -> list[CountsValue]:
        """All of this, but for when each was heard."""
        return [
            CountsValue(c.applied, c.answers, c.staleness, c.total_staleness, dict(c.numbers), c.logged)
            for c in self._counts
        ]

    def recall(self, values: Iterable[CountsValue]) -> None:
        """Go on from there."""
        for counts, value in zip(self._counts, values, strict=True):
            counts.applied, counts.answers = value.applied, dict(value.answers)
            counts.staleness, counts.total_staleness = value.staleness, value.total_staleness
            counts.numbers, counts.logged = value.numbers, value.logged

    def count(self, decisions: Iterable[Decision]) -> None:
        """These were decided."""
        counts = self._counts
        for decision in decisions:
            if isinstance(decision, Apply):
                for part in decision.parts:
                    counts[part.worker].applied += 1
            elif isinstance(decision, Answer) and decision.status in counts[decision.worker].answers:
                worker = counts[decision.worker]
                worker.answers[decision.status] += 1
                if decision.status in ("applied", "folded"):
                    worker.staleness = decision.staleness
                    worker.total_staleness += decision.staleness

    def heard(self, worker: int) -> None:
        """A worker has spoken."""
        self._counts[worker].heard = time.monotonic()

    def log(self, worker: int, numbers: Mapping[str, float], step: int) -> None:
        """A worker's latest numbers, and the step that they belong to."""
        counts = self._counts[worker]
        counts.numbers, counts.logged = numbers, step

    def status(self, worker: int, task: str, presence: str) -> WorkerStatus:
        """A worker's counts as they are now."""
        counts = self._counts[worker]
        return WorkerStatus(
            task,
            presence,
            counts.applied,
            counts.answers["dropped"],
            counts.answers["folded"],
            counts.answers["skipped"],
            counts.staleness,
            counts.total_staleness,
            None if counts.heard is None else time.monotonic() - counts.heard,
            dict(counts.numbers),
            counts.logged,
        )
