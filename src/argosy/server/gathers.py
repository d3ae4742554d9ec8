"""Small values that all workers exchange: the server's part in barriers, broadcasts and gathers. Pure.

Gathers are numbered, and every worker takes part in them in the same order. A gather is complete when every
worker that is still in the job has given its value. A process that takes a worker's place makes the gathers
of its script again: it gets what was brought to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

# So many of the first and of the latest gathers are kept: those at the start of a script, and those since a
# worker's latest turn.
_KEPT = 1000


class GathersValue(msgspec.Struct, array_like=True):
    """Gathers as plain data."""

    brought: dict[int, dict[int, msgspec.Raw]]
    held: int
    latest: dict[int, msgspec.Raw]
    past: dict[int, dict[int, msgspec.Raw]]


class Gathers:
    """The values brought so far to each gather that has not taken place; `keeps`: and to those that have."""

    def __init__(self, keeps: bool = False) -> None:
        self._keeps = keeps
        self._past: dict[int, dict[int, msgspec.Raw]] = {}
        self._brought: dict[int, dict[int, msgspec.Raw]] = {}
        self.held = 0  # the number of the last that took place
        self._latest: dict[int, msgspec.Raw] = {}  # what was brought to it

    def value(self) -> GathersValue:
        """All of this."""
        return GathersValue(self._brought, self.held, self._latest, self._past)

    def recall(self, value: GathersValue) -> None:
        """Go on from there; what was decoded must not refer to the bytes that it came from."""
        self._brought = {number: _copied(values) for number, values in value.brought.items()}
        self._past = {number: _copied(values) for number, values in value.past.items()}
        self.held = value.held
        self._latest = _copied(value.latest)

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
                if self._keeps:
                    self._past[number] = self._latest
                    if number > 2 * _KEPT:
                        self._past.pop(number - _KEPT, None)
                yield number, self._latest

    def missed(self, number: int) -> dict[int, msgspec.Raw] | None:
        """What was brought to a gather that has taken place, for one who did not hear of it."""
        return self._latest if number == self.held else self._past.get(number)

    def missing(self, awaited: Iterable[int]) -> list[int]:
        """The workers that the first open gather waits for."""
        if not self._brought:
            return []
        return sorted(set(awaited) - self._brought[min(self._brought)].keys())


def _copied(values: Mapping[int, msgspec.Raw]) -> dict[int, msgspec.Raw]:
    return {worker: value.copy() for worker, value in values.items()}
