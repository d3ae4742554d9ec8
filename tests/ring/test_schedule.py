"""The ring on paper."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.ring.schedule import chunk_buffers, chunks, homes, others, slices, stages


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
def test_every_chunk_is_entered_reduced_and_left(count: int) -> None:
    steps = list(stages(count))
    place = {(stage.phase, stage.chunk): number for number, stage in enumerate(steps)}
    assert len(place) == len(steps) == 3 * count
    for chunk in range(count):
        assert place["enter", chunk] < place["reduce", chunk] < place["leave", chunk]


@given(st.integers(2, 5), st.lists(st.integers(1, 6), min_size=1, max_size=6), st.randoms())
def test_a_buffer_is_filled_again_only_when_nobody_reads_it(
    ranks: int, calls: list[int], random: Random
) -> None:
    """Ranks in any order, as far as each may go: what a call may rely on, chunk by chunk."""
    walk = []
    base = following = 0
    for count in calls:
        walk += [
            (stage.phase, base + stage.chunk, (following + stage.chunk) % chunk_buffers(ranks))
            for stage in stages(count)
        ]
        base += count
        following = following + count if ranks > 2 else 0
    done: list[set[tuple[str, int]]] = [set() for _ in range(ranks)]
    at = [0] * ranks
    filled = [dict[int, int]() for _ in range(ranks)]
    before = {"reduce": "enter", "leave": "reduce"}
    while ready := [
        rank
        for rank in range(ranks)
        if at[rank] < len(walk)
        and all(
            walk[at[rank]][0] == "enter" or (before[walk[at[rank]][0]], walk[at[rank]][1]) in other
            for other in done
        )
    ]:
        rank = random.choice(ready)
        phase, chunk, buffer = walk[at[rank]]
        at[rank] += 1
        if phase == "enter":
            if (last := filled[rank].get(buffer)) is not None:
                assert ("leave", last) in done[rank]
                assert all(("reduce" if ranks == 2 else "leave", last) in other for other in done)
            filled[rank][buffer] = chunk
        done[rank].add((phase, chunk))
    assert at == [len(walk)] * ranks


@given(st.integers(0, 10**4), st.integers(1, 9))
def test_no_rank_sums_in_a_place_of_its_own_and_all_sums_are_found(count: int, ranks: int) -> None:
    found = homes(count, ranks, 4)
    assert [part for _, part in found] == [(0, found[0][1][1]), (found[0][1][1], count)]
    for rank, (left, right) in enumerate(slices(count, ranks, 4)):
        for home, whole in found:
            if left < right and whole[0] <= left < whole[1]:
                assert right <= whole[1]
                assert home != rank or ranks == 1


@pytest.mark.parametrize(
    ("mine", "expected"),
    [
        ((0, 4), [(4, 9)]),
        ((3, 5), [(0, 3), (5, 9)]),
        ((9, 9), [(0, 9)]),
        ((0, 9), []),
        ((9, 12), [(0, 9)]),
        ((12, 15), [(0, 9)]),
    ],
)
def test_what_is_left(mine: tuple[int, int], expected: list[tuple[int, int]]) -> None:
    assert others((0, 9), mine) == expected
