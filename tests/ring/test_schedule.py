"""The ring on paper."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.ring.schedule import SLOTS, chunks, others, slices, stages


@given(st.integers(0, 10**5), st.integers(100, 10**6))
def test_chunks_cover_everything_once(count: int, most: int) -> None:
    pieces = chunks(count, most)
    assert sum(end - begin for begin, end in pieces) == count
    assert all(0 < end - begin <= most for begin, end in pieces)
    assert [begin for begin, _ in pieces[1:]] == [end for _, end in pieces[:-1]]


@given(st.integers(0, 10**6), st.integers(1, 16), st.sampled_from([1, 2, 4, 8]))
def test_slices_cover_everything_once_in_whole_lines(count: int, ranks: int, itemsize: int) -> None:
    parts = slices(count, ranks, itemsize)
    assert len(parts) == ranks
    assert parts[0][0] == 0
    assert parts[-1][1] == count
    assert all(begin <= end for begin, end in parts)
    assert all(left[1] == right[0] for left, right in pairwise(parts))
    assert all(begin * itemsize % 64 == 0 or begin == count for begin, _ in parts)


@given(st.integers(1, 40))
def test_a_slot_is_filled_again_only_when_its_chunk_has_left(count: int) -> None:
    steps = list(stages(count))
    place = {(stage.phase, stage.chunk): number for number, stage in enumerate(steps)}
    assert len(place) == len(steps) == 3 * count
    for chunk in range(count):
        assert place["enter", chunk] < place["reduce", chunk] < place["leave", chunk]
        if chunk >= SLOTS:
            assert place["leave", chunk - SLOTS] < place["enter", chunk]


@pytest.mark.parametrize(
    ("mine", "expected"),
    [((0, 4), [(4, 9)]), ((3, 5), [(0, 3), (5, 9)]), ((9, 9), [(0, 9)]), ((0, 9), [])],
)
def test_what_is_left(mine: tuple[int, int], expected: list[tuple[int, int]]) -> None:
    assert others((0, 9), mine) == expected
