"""In which order the operations of a captured step run when what each of them costs is known.

Pure. Other tasks wait for what is sent to them, so that comes first from which most follows: of two gradients
the one whose update takes longer. An order that keeps to `Item.after` gives the same results, to the bit.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from argosy.remote.compiled import Compiled
from argosy.wire.frames import ITEMSIZE

# What takes less than this is done as soon as it can be, in seconds.
_QUICK = 60e-6
# What other tasks do with a byte that they are sent, in seconds: an estimate, of an update and two copies.
_ELSEWHERE = 0.3e-9
# What is done later than its turn keeps what it reads alive: with more than this made in a row, in bytes, it
# stays in the order of the program.
_ROOM = 64 * 2**20
_ITEMSIZE: Mapping[str, int] = {str(name): size for name, size in ITEMSIZE.items()}


@dataclass
class Item:
    """An operation, or a value that is sent. Slots are places in a list that each replay has of its own."""

    index: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    compiled: Compiled | None = None
    floats: tuple[float, ...] = ()
    site: int = -1
    task: str = ""
    there: int = 0
    needs: int = 0  # the values from elsewhere that it depends on, one bit each
    after: set[int] = field(default_factory=set)
    home: int = -1  # of what is sent: the item after which it can leave


class Haste:
    """The items of a step, and how much depends on each."""

    def __init__(self, items: Sequence[Item], costs: Sequence[float]) -> None:
        self._costs = costs
        self._sizes: dict[int, int] = {}  # of what was made here, by its slot
        for item in items:
            self._sizes |= zip(item.outputs, _sizes(item), strict=False)
        self._urgency = [0.0] * len(items)
        for item in reversed(items):
            self._urgency[item.index] += self._duration(item)
            for before in item.after:
                self._urgency[before] = max(self._urgency[before], self._urgency[item.index])

    def _duration(self, item: Item) -> float:
        """How long an item takes, there too where it is sent."""
        if item.compiled is None:
            return self._sizes.get(item.inputs[0], 0) * _ELSEWHERE
        return self._costs[item.index]

    def order(self, items: Sequence[Item]) -> list[Item]:
        """The same items: what is quick, or sent, at once; of what is long, that from which most follows."""
        if sum(sum(_sizes(item)) for item in items if item.compiled and not item.compiled.light) > _ROOM:
            return list(items)
        inside = {item.index: item for item in items}
        missing = {item.index: len(item.after & inside.keys()) for item in items}
        followers: dict[int, list[int]] = {}
        for item in items:
            for before in item.after & inside.keys():
                followers.setdefault(before, []).append(item.index)
        ready = [self._turn(item) for item in items if not missing[item.index]]
        heapq.heapify(ready)
        result: list[Item] = []
        while ready:
            _, index = heapq.heappop(ready)
            result.append(inside[index])
            for follower in followers.get(index, ()):
                missing[follower] -= 1
                if not missing[follower]:
                    heapq.heappush(ready, self._turn(inside[follower]))
        return result

    def _turn(self, item: Item) -> tuple[float, int]:
        quick = item.compiled is None or self._costs[item.index] < _QUICK
        return (-math.inf if quick else -self._urgency[item.index], item.index)


def _sizes(item: Item) -> list[int]:
    """The bytes of each of an item's outputs."""
    results = () if item.compiled is None else item.compiled.results or ()
    return [math.prod(result.shape) * _ITEMSIZE.get(result.dtype, 8) for result in results]
