"""Small values that all workers exchange: the server's part in barriers, broadcasts and gathers. Pure.

Gathers are numbered, and every worker takes part in them in the same order. A gather is complete when every
worker that is still in the job has given its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec


class GathersValue(msgspec.Struct, array_like=True):
    """Gathers as plain data."""

    brought: dict[int, dict[int, msgspec.Raw]]
    held: int
    latest: dict[int, msgspec.Raw]


class Gathers:
    """The values brought so far to each gather that has not taken place."""

    def __init__(self) -> None:
        self._brought: dict[int, dict[int, msgspec.Raw]] = {}
        self.held = 0  # the number of the last that took place
        self._latest: dict[int, msgspec.Raw] = {}  # what was brought to it

    def value(self) -> GathersValue:
        """All of this."""
        return GathersValue(self._brought, self.held, self._latest)

    def recall(self, value: GathersValue) -> None:
        """Go on from there; what was decoded must not refer to the bytes that it came from."""
        self._brought = {
            number: {worker: value.copy() for worker, value in brought.items()}
            for number, brought in value.brought.items()
        }
        self.held = value.held
        self._latest = {worker: brought.copy() for worker, brought in value.latest.items()}

    def attend(self, number: int, worker: int, value: msgspec.Raw) -> None:
        """A worker is there, with a value."""
        self._brought.setdefault(number, {})[worker] = value

    def take_place(self, awaited: Iterable[int]) -> Iterator[tuple[int, dict[int, msgspec.Raw]]]:
        """The gathers at which all of `awaited` are present now, each with what was brought."""
        everyone = set(awaited)
        for number in sorted(self._brought):
            if everyone <= self._brought[number].keys():
                brought = self._brought.pop(number)
                self.held = max(self.held, number)
                self._latest = {worker: brought[worker] for worker in sorted(brought)}
                yield number, self._latest

    def missed(self, number: int) -> dict[int, msgspec.Raw] | None:
        """What was brought to a gather that has taken place, for one who did not hear of it."""
        return self._latest if number == self.held else None

    def missing(self, awaited: Iterable[int]) -> list[int]:
        """The workers that the first open gather waits for."""
        if not self._brought:
            return []
        return sorted(set(awaited) - self._brought[min(self._brought)].keys())
