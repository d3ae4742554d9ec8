"""Who came and went, from the coordinator's answers into the journal: each change once.

The coordinator tells of the latest changes again and again. A chief that was started again finds in the
journal what the process before it has written of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from argosy.observe.journal import Journal, read
from argosy.protocol.asking import Change, ChangeKind

_KINDS: tuple[str, ...] = get_args(ChangeKind)


class ChangeRecorder:
    """Of one journal. A change is known again by its number, which every job counts from 1, and its time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._recorded: set[tuple[int, float]] | None = None

    def record(self, changes: Iterable[Change]) -> None:
        """Append those that are not there yet."""
        if self._recorded is None:
            self._recorded = self._read()
        for change in changes:
            if (key := (change.number, change.time)) not in self._recorded:
                self._recorded.add(key)
                self._journal.record_at(
                    change.time, change.kind, step=change.step, task=change.task, number=change.number
                )

    def _read(self) -> set[tuple[int, float]]:
        try:
            events = list(read(self._journal.path.parent, _KINDS))
        except OSError:
            return set()
        return {(event.get("number", 0), event.get("time", 0.0)) for event in events}
