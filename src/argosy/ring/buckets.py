"""Which gradients travel together: buckets in the reverse order of the parameters, on paper.

Backward makes the gradients of the last layers first; a bucket is full, and leaves, while backward goes on
with the layers before. Everything in a bucket has one dtype, and begins at a whole cache line. A tensor that
is larger than a bucket goes in several, so that its first part travels while the next one is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

D = TypeVar("D")
# "mean": of all who give something. "latest" and "max": the mean, or the largest, of what each brought last.
# "first": the first rank's, of all who are there.
Rule = Literal["mean", "latest", "max", "first"]
_LINE = 64
BUCKET_BYTES = 4 * 2**20


@dataclass(frozen=True)
class BucketItem(Generic[D]):
    """A tensor that travels: its number of elements, dtype and the bytes of an element."""

    count: int
    dtype: D
    itemsize: int


@dataclass(frozen=True)
class BucketPiece:
    """The elements `begin` to `end` of the item of that number, and where in its bucket they begin."""

    item: int
    begin: int
    end: int
    whole: bool
    offset: int = 0


@dataclass(frozen=True)
class Bucket(Generic[D]):
    """Pieces that travel together; `count` elements with what lies between them."""

    dtype: D
    rule: Rule
    pieces: tuple[BucketPiece, ...]
    count: int
    nbytes: int


def fill(items: Sequence[BucketItem[D]], most: int, rule: Rule = "mean", first: int = 0) -> list[Bucket[D]]:
    """Buckets of at most `most` bytes; `first` is the number of the first item."""
    open_: dict[D, list[BucketPiece]] = {}
    sizes: dict[D, int] = {}
    full: list[tuple[D, list[BucketPiece]]] = []
    itemsize: dict[D, int] = {}
    for number in reversed(range(len(items))):
        item = items[number]
        itemsize[item.dtype] = item.itemsize
        step = max(1, most // item.itemsize)
        for begin in range(0, item.count, step) or (0,):
            end = min(begin + step, item.count)
            size = _padded(end - begin, item.itemsize)
            if sizes.get(item.dtype, 0) + size > most and open_.get(item.dtype):
                full.append((item.dtype, open_.pop(item.dtype)))
                sizes[item.dtype] = 0
            piece = BucketPiece(first + number, begin, end, end - begin == item.count)
            open_.setdefault(item.dtype, []).append(piece)
            sizes[item.dtype] = sizes.get(item.dtype, 0) + size
    return [_bucket(dtype, itemsize[dtype], members, rule) for dtype, members in (*full, *open_.items())]


def _padded(count: int, itemsize: int) -> int:
    return -(-count * itemsize // _LINE) * _LINE


def _bucket(dtype: D, itemsize: int, members: Sequence[BucketPiece], rule: Rule) -> Bucket[D]:
    pieces = []
    place = 0
    for piece in members:
        pieces.append(replace(piece, offset=place // itemsize))
        place += _padded(piece.end - piece.begin, itemsize)
    return Bucket(dtype, rule, tuple(pieces), place // itemsize, place)
