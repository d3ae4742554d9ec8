"""Small values that all workers exchange: barriers, broadcasts, gatherings. Pure.

Meetings are numbered, and every worker attends them in the same order. A meeting takes place when everyone
who is still in the job is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec


class Meetings:
    """The values brought so far to each meeting that has not taken place."""

    def __init__(self) -> None:
        self._brought: dict[int, dict[int, msgspec.Raw]] = {}
        self.held = 0  # the number of the last that took place
        self._latest: dict[int, msgspec.Raw] = {}  # what was brought to it

    def attend(self, number: int, worker: int, value: msgspec.Raw) -> None:
        """A worker is there, with a value."""
        self._brought.setdefault(number, {})[worker] = value

    def take_place(self, awaited: Iterable[int]) -> Iterator[tuple[int, dict[int, msgspec.Raw]]]:
        """The meetings at which all of `awaited` are present now, each with what was brought."""
        everyone = set(awaited)
        for number in sorted(self._brought):
            if everyone <= self._brought[number].keys():
                brought = self._brought.pop(number)
                self.held = max(self.held, number)
                self._latest = {worker: brought[worker] for worker in sorted(brought)}
                yield number, self._latest

    def missed(self, number: int) -> dict[int, msgspec.Raw] | None:
        """What was brought to a meeting that has taken place, for one who did not hear of it."""
        return self._latest if number == self.held else None

    def missing(self, awaited: Iterable[int]) -> list[int]:
        """The workers that the first open meeting waits for."""
        if not self._brought:
            return []
        return sorted(set(awaited) - self._brought[min(self._brought)].keys())
