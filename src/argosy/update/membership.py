"""Who is in the job: every worker of the cluster is expected until it has finished or is known to be gone."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec


class Presence(Enum):
    """Where a worker stands."""

    EXPECTED = "not arrived yet"
    PRESENT = "in the job"
    LEAVING = "about to leave"
    RETURNING = "gone, to be started again"
    FINISHED = "finished"
    GONE = "gone"


class RosterValue(msgspec.Struct, array_like=True):
    """A roster as plain data."""

    presence: dict[int, Presence]
    last_out: int | None


class Roster:
    """The workers of a job and where each one stands."""

    def __init__(self, workers: int) -> None:
        self._presence = dict.fromkeys(range(workers), Presence.EXPECTED)
        self._awaited = tuple(self._presence)
        self._last_out: int | None = None  # the last of those present who has left

    def value(self) -> RosterValue:
        """All of this."""
        return RosterValue(self._presence, self._last_out)

    def recall(self, value: RosterValue) -> None:
        """Go on from there."""
        self._presence = dict(value.presence)
        self._last_out = value.last_out
        self._count_awaited()

    def __getitem__(self, worker: int) -> Presence:
        return self._presence[worker]

    def __contains__(self, worker: int) -> bool:
        return worker in self._presence

    def arrive(self, worker: int) -> None:
        """A worker is here, for the first time or again."""
        self._stands(worker, Presence.PRESENT)

    def leave(self, worker: int) -> None:
        """A worker brings nothing more: it gets its last values, and then finishes."""
        self._stands(worker, Presence.LEAVING)

    def finish(self, worker: int) -> None:
        """A worker has said that it is done."""
        self._stands(worker, Presence.FINISHED)

    def lose(self, worker: int) -> None:
        """A worker is known to be gone."""
        self._stands(worker, Presence.GONE)

    def expect_back(self, worker: int) -> None:
        """A worker is gone, and another process will take its place."""
        self._stands(worker, Presence.RETURNING)

    def _stands(self, worker: int, presence: Presence) -> None:
        if self._presence[worker] is Presence.PRESENT:
            self._last_out = worker
        self._presence[worker] = presence
        self._count_awaited()

    def _count_awaited(self) -> None:
        here = (Presence.EXPECTED, Presence.PRESENT, Presence.RETURNING)
        self._awaited = tuple(w for w, p in self._presence.items() if p in here)

    def awaited(self) -> tuple[int, ...]:
        """Those that still may push: a synchronous step counts on them."""
        return self._awaited

    def present(self) -> Iterator[int]:
        """Those that are here."""
        return (w for w in self._presence if self.is_here(w))

    def says(self, worker: int) -> str:
        """Where a worker stands, for a person, to whom one that is about to leave is still here."""
        return (Presence.PRESENT if self.is_here(worker) else self._presence[worker]).value

    def is_here(self, worker: int) -> bool:
        """Whether a worker is here."""
        return self._presence[worker] in (Presence.PRESENT, Presence.LEAVING)

    def has_a_part(self, worker: int) -> bool:
        """Whether a worker is here, or may still come."""
        return self.is_here(worker) or worker in self._awaited

    def missing(self) -> list[int]:
        """Those that have not arrived yet."""
        return [w for w, p in self._presence.items() if p is Presence.EXPECTED]

    def returning(self) -> list[int]:
        """Those that are gone, and will come back."""
        return [w for w, p in self._presence.items() if p is Presence.RETURNING]

    def in_training(self) -> list[int]:
        """Those that have begun to train and have not ended: they are here, or will come back."""
        return [w for w, p in self._presence.items() if p is Presence.RETURNING or self.is_here(w)]

    def remaining(self) -> int:
        """How many are not gone for good."""
        return sum(p is not Presence.GONE for p in self._presence.values())

    def everyone_left(self) -> bool:
        """Whether nobody brings anything any more."""
        return not self._awaited

    def abandoned_by(self) -> int | None:
        """The worker whose loss has left nobody to go on; None if somebody is, or the last to go was done."""
        last = self._last_out
        if self._awaited or last is None or self._presence[last] is not Presence.GONE:
            return None
        return last

    def somebody_is_here(self) -> bool:
        """Whether somebody is here, be it only to leave."""
        return any(self.is_here(worker) for worker in self._presence)
