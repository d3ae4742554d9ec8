"""What is summed by whom, in which pieces and in which order: the ring on paper, without memory or clocks.

A tensor is cut into chunks that stay in the processor's caches, and a chunk into one slice a rank. Every
rank walks the same list of stages; three chunks are under way at a time, so that nobody waits for a peer
that has already begun with the next chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


def chunks(count: int, most: int) -> list[tuple[int, int]]:
    """`count` elements in as few equal pieces of at most `most` as there can be: begins and ends."""
    if count <= 0:
        return []
    pieces = -(-count // most)
    size = -(-count // pieces)
    return [(begin, min(begin + size, count)) for begin in range(0, count, size)]


def slices(count: int, ranks: int, itemsize: int) -> list[tuple[int, int]]:
    """A slice of `count` elements for each rank, equal up to a cache line; the last ones may be empty."""
    line = max(1, _LINE // itemsize)
    size = -(-count // (ranks * line)) * line
    return [(min(rank * size, count), min((rank + 1) * size, count)) for rank in range(ranks)]


def stages(count: int) -> Iterator[Stage]:
    """The order in which a rank takes `count` chunks through shared memory.

    A chunk is entered when the chunk two before it, whose slot it gets, has left; it is reduced after the
    next one has been entered, by when the others have mostly arrived.
    """
    for turn in range(count + SLOTS):
        if turn >= SLOTS:
            yield Stage("leave", turn - SLOTS)
        if turn < count:
            yield Stage("enter", turn)
        if 1 <= turn <= count:
            yield Stage("reduce", turn - 1)


def others(whole: tuple[int, int], mine: tuple[int, int]) -> Sequence[tuple[int, int]]:
    """What is left of `whole` without `mine`, which lies in it."""
    parts = ((whole[0], mine[0]), (mine[1], whole[1]))
    return [part for part in parts if part[0] < part[1]]
