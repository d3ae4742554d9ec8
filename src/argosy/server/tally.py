"""What the coordinator counts of every worker: a few additions a push, for whoever asks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import msgspec

from argosy.protocol.asking import WorkerStatus
from argosy.protocol.decisions import Answer, Apply, Decision


class Counts(msgspec.Struct, array_like=True):
    """One worker's."""

    applied: int = 0
    answers: dict[str, int] = msgspec.field(
        default_factory=lambda: {"applied": 0, "dropped": 0, "folded": 0, "skipped": 0}
    )
    staleness: int = 0
    total_staleness: int = 0
    heard: float | None = None
    numbers: dict[str, float] = {}
    logged: int = 0


class Tally:
    """The counts of all workers."""

    def __init__(self, workers: int) -> None:
        self._counts = [Counts() for _ in range(workers)]

    def value(self) -> list[Counts]:
        """All of this."""
        return self._counts

    def recall(self, value: Iterable[Counts]) -> None:
        """Go on from there; when each was heard is another clock's."""
        self._counts = [msgspec.structs.replace(counts, heard=None) for counts in value]

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
        counts.numbers, counts.logged = dict(numbers), step

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
