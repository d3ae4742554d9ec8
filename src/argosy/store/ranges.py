"""Ordered, disjoint ranges of numbers: the parts of a block that have no gradient. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]


def merged(ranges: Sequence[Range]) -> list[Range]:
    """Ranges in order, those that touch made one, empty ones left out."""
    result: list[Range] = []
    for start, stop in sorted(ranges):
        if result and result[-1][1] >= start:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        elif start < stop:
            result.append((start, stop))
    return result


def count_at(steps: Sequence[tuple[int, int, float]], start: int, stop: int) -> tuple[float, int]:
    """The updates of the elements from `start` to `stop`, and which of these stretches they belong to.

    No elements at all belong to the stretch that they lie at, or at the end of.
    """
    for number, (first, last, count) in enumerate(steps):
        if first <= start < last or (start == stop == last):
            return count, number
    return 0.0, 0


def complement(ranges: Sequence[Range], count: int) -> list[Range]:
    """What is left of 0 to `count` without these ordered ranges."""
    edges = [0, *(edge for pair in ranges for edge in pair), count]
    return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]


def intersection(many: Sequence[Sequence[Range]]) -> list[Range]:
    """What lies in all of these lists of ordered ranges."""
    common = list(many[0])
    for ranges in many[1:]:
        common = [(max(a, c), min(b, d)) for a, b in common for c, d in ranges if max(a, c) < min(b, d)]
    return common
