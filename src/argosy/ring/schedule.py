"""What is summed by whom, in which pieces and in which order: the ring on paper, without memory or clocks.

A tensor is cut into chunks that stay in the processor's caches, and a chunk into one slice a rank. Every
rank walks the same list of stages; two chunks are under way at a time, so that nobody waits for a peer
that has already begun with the next chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

# Chunks that are under way at a time: one is filled while the other is summed.
DEPTH = 2
# Slices begin at whole cache lines, whatever the element's size, so that two ranks never write to one.
_LINE = 64

Phase = Literal["enter", "reduce", "leave"]


@dataclass(frozen=True)
class Stage:
    """One thing to do: `phase` with the chunk of that number."""

    phase: Phase
    chunk: int


@lru_cache(maxsize=256)
def chunks(count: int, most: int) -> tuple[tuple[int, int], ...]:
    """`count` elements in as few equal pieces of at most `most` as there can be: begins and ends."""
    if count <= 0:
        return ()
    pieces = -(-count // most)
    size = -(-count // pieces)
    return tuple((begin, min(begin + size, count)) for begin in range(0, count, size))


@lru_cache(maxsize=256)
def slices(count: int, ranks: int, itemsize: int) -> tuple[tuple[int, int], ...]:
    """A slice of `count` elements for each rank, equal up to a cache line; the last ones may be empty."""
    line = max(1, _LINE // itemsize)
    size = -(-count // (ranks * line)) * line
    return tuple((min(rank * size, count), min((rank + 1) * size, count)) for rank in range(ranks))


def home_of(rank: int, ranks: int) -> int:
    """In whose place the sum of a rank's slice is made: the first rank's that is not the rank itself."""
    return 1 if rank == 0 and ranks > 1 else 0


@lru_cache(maxsize=256)
def homes(count: int, ranks: int, itemsize: int) -> tuple[tuple[int, tuple[int, int]], ...]:
    """In whose place which sums of a chunk lie."""
    first = slices(count, ranks, itemsize)[0][1]
    return ((home_of(0, ranks), (0, first)), (0, (first, count)))


def chunk_buffers(ranks: int) -> int:
    """How many chunks lie in shared memory at a time.

    One is filled while another is summed. With three ranks or more, the sums of a third may still be read by
    a slow one: who has seen all reduce a chunk knows only that all have left the one before it. Of two ranks,
    each reads just what the other made, from a place that only it fills: two buffers will do.
    """
    return DEPTH if ranks <= 2 else DEPTH + 1


@lru_cache(maxsize=256)
def stages(count: int) -> tuple[Stage, ...]:
    """The order in which a rank takes `count` chunks through shared memory.

    A chunk is entered when the chunk two before it has left, by when all have left the one whose buffer it
    gets; it is reduced after the next one has been entered, by when the others have mostly arrived.
    """
    found = []
    for turn in range(count + DEPTH):
        if turn >= DEPTH:
            found.append(Stage("leave", turn - DEPTH))
        if turn < count:
            found.append(Stage("enter", turn))
        if 1 <= turn <= count:
            found.append(Stage("reduce", turn - 1))
    return tuple(found)


def others(whole: tuple[int, int], mine: tuple[int, int]) -> Sequence[tuple[int, int]]:
    """What is left of `whole` without `mine`."""
    parts = ((whole[0], min(mine[0], whole[1])), (max(mine[1], whole[0]), whole[1]))
    return [part for part in parts if part[0] < part[1]]
