"""The order of the operations of a captured step, once the cost of each is known.

Pure. The order is that of the program, with two exceptions in favour of other tasks, which wait for messages:
a quick operation that leads only to a message runs at once; and of two results that are sent soon after each
other, the larger is computed first. Any order that respects `PlanItem.after` gives the same bits.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

from argosy.remote.plan.dependencies import PlanItem
from argosy.remote.transport.tensor_codec import dtype_of

# An operation that takes less than this, in seconds, is quick.
QUICK = 60e-6
# An item is delayed by at most this many times its own cost, the cost on the receiving task included.
_MOST_DELAY = 2.0
# Seconds that another task spends on a byte that it receives: an estimate, for an update and two copies.
_REMOTE_COST = 0.3e-9
# A delayed item keeps its inputs alive: if a segment makes more bytes than this, its order stays.
_MOST_BYTES = 64 * 2**20


class Priorities:
    """The items of a step, and which of them lead to nothing but a message."""

    def __init__(self, items: Sequence[PlanItem], costs: Sequence[float]) -> None:
        self._costs = costs
        self._spent = list(accumulate(costs, initial=0.0))  # before each item, in the order of the program
        self._followers: list[list[int]] = [[] for _ in items]
        sizes: dict[int, int] = {}  # the bytes of each register that the step makes
        for item in items:
            sizes |= zip(item.outputs, _sizes(item), strict=False)
            for before in item.after:
                self._followers[before].append(item.index)
        # The bytes that are sent after an item which only quick items and messages follow. If the item is
        # quick too, it runs at once; else it is the last long one before its message.
        self._sent: dict[int, int] = {}
        self._at_once: set[int] = set()
        for item in reversed(items):
            after = self._followers[item.index]
            if self._at_once.issuperset(after):
                own = sizes.get(item.inputs[0], 0) if item.kernel is None else 0
                self._sent[item.index] = max([own, *(self._sent[each] for each in after)])
                if item.kernel is None or costs[item.index] < QUICK:
                    self._at_once.add(item.index)

    def order(self, items: Sequence[PlanItem]) -> list[PlanItem]:
        """The items of a segment in the order in which they run."""
        if sum(sum(_sizes(item)) for item in items if item.kernel and not item.kernel.light) > _MOST_BYTES:
            return list(items)
        inside = {item.index: item for item in items}
        at_once = self._at_once | {item.index for item in items if item.kernel is None}
        turns = {index: (0.0 if index in at_once else 1.0, float(index)) for index in inside}
        turns |= {index: (1.0, later + 0.5) for index, later in self._delayed(items)}
        missing = {item.index: len(item.after & inside.keys()) for item in items}
        ready = [(turns[index], index) for index, count in missing.items() if not count]
        heapq.heapify(ready)
        result: list[PlanItem] = []
        while ready:
            _, index = heapq.heappop(ready)
            result.append(inside[index])
            for follower in self._followers[index]:
                if follower in missing:
                    missing[follower] -= 1
                    if not missing[follower]:
                        heapq.heappush(ready, (turns[follower], follower))
        return result

    def _delayed(self, items: Sequence[PlanItem]) -> Iterator[tuple[int, int]]:
        """Items that had better run after another one whose message is larger, and that one."""
        last = [each for each in (item.index for item in items) if self._is_last_before_message(each)]
        spent = self._spent
        for place, mine in enumerate(last):
            delay = _MOST_DELAY * (self._costs[mine] + self._sent[mine] * _REMOTE_COST)
            near = [each for each in last[place + 1 :] if spent[each + 1] - spent[mine + 1] < delay]
            largest = max(near, key=lambda each: self._sent[each], default=mine)
            if self._sent[largest] > self._sent[mine]:
                yield mine, largest

    def _is_last_before_message(self, index: int) -> bool:
        return self._sent.get(index, 0) > 0 and index not in self._at_once


def _sizes(item: PlanItem) -> list[int]:
    """The bytes of each of an item's outputs."""
    results = () if item.kernel is None else item.kernel.results or ()
    return [math.prod(result.shape) * dtype_of(result.dtype).itemsize for result in results]
