"""A log: what one server tells others, in order, none of it lost, doubled or passed over. Pure.

The writer gives every entry an index and keeps it until all followers have acknowledged it. A follower takes
entries strictly in their order and asks for what it has missed. Both sides say from time to time how far they
are, so that the loss of the very last entry is noticed, too. The epoch is one life of the log: entries of an
earlier epoch are refused, whatever their index. A server that comes back goes on with its log, in the same
epoch. Whoever uses this may lose, double or reorder messages as it likes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Log(Generic[T]):
    """The writer's side: `last` is the index of the latest entry, the first one has index 1."""

    def __init__(self, followers: Iterable[int], epoch: int = 1, last: int = 0) -> None:
        self.epoch = epoch
        self.last = last
        self._kept: deque[T] = deque()  # the latest of all, those that somebody may still need
        self._acknowledged = dict.fromkeys(followers, last)

    def append(self, entry: T) -> int:
        """Keep an entry; its index."""
        self.last += 1
        if self._acknowledged:
            self._kept.append(entry)
        return self.last

    def acknowledge(self, follower: int, index: int) -> range:
        """A follower has taken every entry up to this one; the indices of those that nobody needs now."""
        if not self._acknowledged[follower] < index <= self.last:
            return range(0)  # it was said before, or is not true
        self._acknowledged[follower] = index
        first = self.last - len(self._kept) + 1
        needed = min(self._acknowledged.values()) + 1
        for _ in range(first, needed):
            self._kept.popleft()
        return range(first, needed)

    def recall(self, last: int, kept: Iterable[T]) -> None:
        """Go on where an earlier process of the writer was: these are the latest entries, up to `last`."""
        self.last = last
        self._kept.extend(kept)
        self._acknowledged = dict.fromkeys(self._acknowledged, last - len(self._kept))

    def after(self, index: int) -> Iterator[tuple[int, T]]:
        """The entries after this one, with their indices; those that everybody has are gone."""
        first = self.last - len(self._kept) + 1
        for place, entry in enumerate(list(self._kept)):
            if first + place > index:
                yield first + place, entry

    def is_known_to(self, follower: int) -> bool:
        """Whether a follower has acknowledged everything."""
        return self._acknowledged[follower] >= self.last

    @property
    def kept(self) -> int:
        """How many entries are kept for followers that have not acknowledged them."""
        return len(self._kept)


class LogReader:
    """A follower's side: it has taken every entry up to `taken`, each in its turn."""

    def __init__(self, epoch: int = 1, taken: int = 0) -> None:
        self.epoch = epoch
        self.taken = taken
        self._asked: int | None = None  # how far it was when it last asked for what follows

    def take(self, epoch: int, index: int) -> bool:
        """Whether this entry is the next."""
        if epoch < self.epoch or index != self.taken + 1:
            return False
        self.epoch = epoch
        self.taken = index
        return True

    def misses(self, epoch: int, index: int) -> bool:
        """Whether an entry of this index shows that some before it were lost; said once for each gap."""
        if epoch < self.epoch or index <= self.taken or self._asked == self.taken:
            return False
        self._asked = self.taken
        return True

    def lags(self, epoch: int, last: int) -> bool:
        """Whether the writer, which has written up to `last` by now, must send something again."""
        return epoch >= self.epoch and last > self.taken
