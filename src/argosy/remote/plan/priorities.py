"""In which order the operations of a captured step run when what each of them costs is known.

Pure. The order is the program's, with two exceptions for the sake of other tasks, who wait for what they are
sent: what is quick and leads to a message is done at once; and of two gradients that are close together, the
one whose update takes longer comes first. An order that keeps to `Item.after` gives the same bits.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

from argosy.remote.plan.items import Item
from argosy.remote.transport.tensor_codec import dtype_of

# What takes less than this is quick, in seconds.
QUICK = 60e-6
# An item is not put off for longer than so many times what it takes itself, there too where it is sent.
_PATIENCE = 2.0
# What other tasks do with a byte that they are sent, in seconds: an estimate, of an update and two copies.
_ELSEWHERE = 0.3e-9
# What is done later than its turn keeps what it reads alive: with more than this made in a row, in bytes, it
# stays in the order of the program.
_ROOM = 64 * 2**20


class Haste:
    """The items of a step, and which of them lead to nothing but a message."""

    def __init__(self, items: Sequence[Item], costs: Sequence[float]) -> None:
        self._costs = costs
        self._spent = list(accumulate(costs, initial=0.0))  # before each item, in the order of the program
        self._followers: list[list[int]] = [[] for _ in items]
        sizes: dict[int, int] = {}  # of what was made here, by its slot
        for item in items:
            sizes |= zip(item.outputs, _sizes(item), strict=False)
            for before in item.after:
                self._followers[before].append(item.index)
        # Of an item after which only quick ones and messages come: how many bytes are sent then. It is an
        # errand if it is quick itself, else a last stretch.
        self._sent: dict[int, int] = {}
        self._errands: set[int] = set()
        for item in reversed(items):
            after = self._followers[item.index]
            if self._errands.issuperset(after):
                own = sizes.get(item.inputs[0], 0) if item.compiled is None else 0
                self._sent[item.index] = max([own, *(self._sent[each] for each in after)])
                if item.compiled is None or costs[item.index] < QUICK:
                    self._errands.add(item.index)

    def order(self, items: Sequence[Item]) -> list[Item]:
        """The same items: errands and messages at once, a last stretch after a longer one close behind it."""
        if sum(sum(_sizes(item)) for item in items if item.compiled and not item.compiled.light) > _ROOM:
            return list(items)
        inside = {item.index: item for item in items}
        at_once = self._errands | {item.index for item in items if item.compiled is None}
        turns = {index: (0.0 if index in at_once else 1.0, float(index)) for index in inside}
        turns |= {index: (1.0, later + 0.5) for index, later in self._put_off(items)}
        missing = {item.index: len(item.after & inside.keys()) for item in items}
        ready = [(turns[index], index) for index, count in missing.items() if not count]
        heapq.heapify(ready)
        result: list[Item] = []
        while ready:
            _, index = heapq.heappop(ready)
            result.append(inside[index])
            for follower in self._followers[index]:
                if follower in missing:
                    missing[follower] -= 1
                    if not missing[follower]:
                        heapq.heappush(ready, (turns[follower], follower))
        return result

    def _put_off(self, items: Sequence[Item]) -> Iterator[tuple[int, int]]:
        """Last stretches that had better come after another one, and which."""
        stretches = [each for each in (item.index for item in items) if self._is_last_stretch(each)]
        spent = self._spent
        for place, mine in enumerate(stretches):
            patience = _PATIENCE * (self._costs[mine] + self._sent[mine] * _ELSEWHERE)
            near = [each for each in stretches[place + 1 :] if spent[each + 1] - spent[mine + 1] < patience]
            longest = max(near, key=lambda each: self._sent[each], default=mine)
            if self._sent[longest] > self._sent[mine]:
                yield mine, longest

    def _is_last_stretch(self, index: int) -> bool:
        return self._sent.get(index, 0) > 0 and index not in self._errands


def _sizes(item: Item) -> list[int]:
    """The bytes of each of an item's outputs."""
    results = () if item.compiled is None else item.compiled.results or ()
    return [math.prod(result.shape) * dtype_of(result.dtype).itemsize for result in results]
