"""Layouts: every element of every parameter lies in exactly one place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import WireError
from argosy.protocol import layout as layouts
from argosy.protocol.frames import ITEMSIZE, Dtype
from argosy.protocol.layout import Block, Layout, ParameterSpec, Piece, Share, check_layout, extend
from argosy.store.placement import Greedy, RoundRobin, Split

LIMIT = 64  # bytes in a block, in these tests

specs = st.builds(
    ParameterSpec,
    name=st.text(max_size=3),
    shape=st.lists(st.integers(0, 12), max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "bfloat16", "float64"]),
    group=st.integers(0, 2),
)
placements = st.sampled_from([Greedy(), RoundRobin(), Split(over=0), Split(over=40)])


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> object:
    patch = pytest.MonkeyPatch()
    patch.setattr(layouts, "MAX_FRAME_BYTES", LIMIT)
    yield
    patch.undo()


def check(layout: Layout) -> None:
    """Each element in one piece, each piece in one place of its block, no block too large or with gaps."""
    for number, spec in enumerate(layout.parameters):
        mine = sorted((p.start, p.stop) for p in layout.pieces if p.parameter == number)
        assert [start for start, _ in mine] == [0, *(stop for _, stop in mine[:-1])]
        assert mine[-1][1] == spec.count
    for block, pieces in zip(layout.blocks, layout.pieces_by_block(), strict=True):
        assert block.count * ITEMSIZE[block.dtype] <= LIMIT
        offset = 0
        for piece in pieces:
            assert piece.offset == offset
            offset += piece.count
            spec = layout.parameters[piece.parameter]
            assert (spec.group, spec.dtype) == (block.group, block.dtype)
        assert offset == block.count


@settings(deadline=None, derandomize=True)
@given(
    first=st.lists(specs, max_size=8),
    second=st.lists(specs, max_size=8),
    placement=placements,
    servers=st.integers(1, 3),
)
def test_every_element_is_in_exactly_one_place(
    first: list[ParameterSpec],
    second: list[ParameterSpec],
    placement: Greedy | RoundRobin | Split,
    servers: int,
) -> None:
    layout = extend(Layout(), first, placement.place(first, [0] * servers))
    check(layout)
    wider = extend(layout, second, placement.place(second, layout.loads(servers)))
    check(wider)
    assert wider.parameters[: len(first)] == layout.parameters
    assert wider.blocks[: len(layout.blocks)] == layout.blocks
    assert wider.pieces[: len(layout.pieces)] == layout.pieces
    assert sum(wider.loads(servers)) == sum(spec.nbytes for spec in wider.parameters)
    numbers = [number for server in range(servers) for number in wider.blocks_of(server)]
    assert sorted(numbers) == list(range(len(wider.blocks)))


def test_blocks_are_one_a_group_and_dtype() -> None:
    kinds: list[tuple[Dtype, int]] = [("float32", 0), ("float32", 1), ("bfloat16", 0), ("float32", 0)]
    parameters = [ParameterSpec(f"p{n}", (2,), dtype, group) for n, (dtype, group) in enumerate(kinds)]
    layout = extend(Layout(), parameters, [[Share(0, 0, 2)]] * 4)
    assert layout.blocks == (Block(0, 0, "float32", 4), Block(0, 1, "float32", 2), Block(0, 0, "bfloat16", 2))
    assert layout.pieces[3] == Piece(3, 0, 2, 0, 2)


def test_a_tensor_larger_than_a_block_is_cut() -> None:
    layout = extend(Layout(), [ParameterSpec("large", (40,), "float32")], [[Share(1, 0, 40)]])
    assert [block.count for block in layout.blocks] == [16, 16, 8]
    assert layout.blocks_of(0) == []
    assert layout.blocks_of(1) == [0, 1, 2]


def test_a_parameter_says_what_it_is() -> None:
    spec = ParameterSpec("layer.weight", (3, 4), "bfloat16")
    assert str(spec) == "layer.weight bfloat16[3, 4]"
    assert (spec.count, spec.nbytes) == (12, 24)
    assert ParameterSpec("scalar", (), "float64").count == 1


# --- what comes from outside ------------------------------------------------------------------------------
SPEC = ParameterSpec("w", (4,), "float32")
ONE = Block(0, 0, "float32", 4)


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (Layout((SPEC,), (Block(0, 0, "float32", 5),), (Piece(0, 0, 5, 0, 0),)), "larger than w"),
        (Layout((SPEC,), (Block(0, 0, "float32", 1),), (Piece(0, 4, 5, 0, 0),)), "larger than w"),
        (Layout((SPEC,), (ONE,), (Piece(0, 0, 4, 1, 0),)), "has no place"),
        (Layout((SPEC,), (ONE,), (Piece(1, 0, 4, 0, 0),)), "has no place"),
        (Layout((SPEC,), (ONE,), (Piece(0, 0, 4, 0, 1),)), "has no place"),
        (Layout((SPEC,), (ONE,), (Piece(0, 4, 0, 0, 0),)), "has no place"),
        (Layout((SPEC,), (ONE,), (Piece(0, -1, 3, 0, 0),)), "has no place"),
        (Layout((SPEC,), (ONE,), (Piece(0, 0, 3, 0, 0),)), "differ in size"),
        (Layout((SPEC,), (Block(2, 0, "float32", 4),), (Piece(0, 0, 4, 0, 0),)), "with 2 servers"),
        (Layout((SPEC,), (Block(0, 1, "float32", 4),), (Piece(0, 0, 4, 0, 0),)), "and 1 groups"),
    ],
)
def test_a_layout_that_does_not_hang_together_is_refused(layout: Layout, why: str) -> None:
    with pytest.raises(WireError, match=why):
        check_layout(layout, 2, 1)


def test_a_layout_of_our_own_is_not_refused() -> None:
    shares = [[Share(1, 0, 3), Share(0, 3, 4)], [Share(0, 0, 0)]]
    check_layout(extend(Layout(), [SPEC, ParameterSpec("none", (0,), "float32")], shares), 2, 1)
