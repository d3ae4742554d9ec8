"""Which gradients travel together: buckets in the reverse order of the parameters, on paper.

Backward makes the gradients of the last layers first; a bucket is full, and leaves, while backward goes on
with the layers before. Everything in a bucket has one dtype, and begins at a whole cache line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

D = TypeVar("D")
# "mean": of all who give something. "first": the first rank's, of all who are there.
Rule = Literal["mean", "first"]
_LINE = 64
BUCKET_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Item(Generic[D]):
    """A tensor that travels: its number of elements, dtype and the bytes of an element."""

    count: int
    dtype: D
    itemsize: int


@dataclass(frozen=True)
class Bucket(Generic[D]):
    """Items by their number, and where each begins, in elements; `begin` is where it lies in memory."""

    dtype: D
    rule: Rule
    items: tuple[int, ...]
    offsets: tuple[int, ...]
    count: int
    nbytes: int


def fill(items: Sequence[Item[D]], most: int, rule: Rule = "mean", first: int = 0) -> list[Bucket[D]]:
    """Buckets of at most `most` bytes, or of one item; `first` is the number of the first item."""
    open_: dict[D, list[int]] = {}
    sizes: dict[D, int] = {}
    full: list[list[int]] = []
    for number in reversed(range(len(items))):
        item = items[number]
        size = _padded(item)
        if sizes.get(item.dtype, 0) + size > most and open_.get(item.dtype):
            full.append(open_.pop(item.dtype))
            sizes[item.dtype] = 0
        open_.setdefault(item.dtype, []).append(number)
        sizes[item.dtype] = sizes.get(item.dtype, 0) + size
    return [_bucket(items, members, rule, first) for members in (*full, *open_.values())]


def _padded(item: Item[D]) -> int:
    return -(-item.count * item.itemsize // _LINE) * _LINE


def _bucket(items: Sequence[Item[D]], members: Sequence[int], rule: Rule, first: int) -> Bucket[D]:
    offsets = []
    place = 0
    for number in members:
        offsets.append(place // items[number].itemsize)
        place += _padded(items[number])
    itemsize = items[members[0]].itemsize
    return Bucket(
        items[members[0]].dtype,
        rule,
        tuple(first + number for number in members),
        tuple(offsets),
        place // itemsize,
        place,
    )
