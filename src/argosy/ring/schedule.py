"""What is summed by whom, in which pieces and in which order: the ring on paper, without memory or clocks.

A tensor is cut into chunks that stay in the processor's caches, and a chunk into one slice a rank. Every
rank walks the same list of stages; three chunks are under way at a time, so that nobody waits for a peer
that has already begun with the next chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

# Two chunks lie in shared memory at a time: one is filled while the other is summed and read.
SLOTS = 2
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


@lru_cache(maxsize=256)
def stages(count: int) -> tuple[Stage, ...]:
    """The order in which a rank takes `count` chunks through shared memory.

    A chunk is entered when the chunk two before it, whose slot it gets, has left; it is reduced after the
    next one has been entered, by when the others have mostly arrived.
    """
    found = []
    for turn in range(count + SLOTS):
        if turn >= SLOTS:
            found.append(Stage("leave", turn - SLOTS))
        if turn < count:
            found.append(Stage("enter", turn))
        if 1 <= turn <= count:
            found.append(Stage("reduce", turn - 1))
    return tuple(found)


def others(whole: tuple[int, int], mine: tuple[int, int]) -> Sequence[tuple[int, int]]:
    """What is left of `whole` without `mine`, which lies in it."""
    parts = ((whole[0], mine[0]), (mine[1], whole[1]))
    return [part for part in parts if part[0] < part[1]]
