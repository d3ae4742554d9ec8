"""Placements: which server gets which parameter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.errors import ConfigError
from argosy.protocol.layout import ParameterSpec, Share
from argosy.store.placement import Greedy, RoundRobin, Split, UserPlacement, place

sizes = st.lists(st.integers(0, 1000), min_size=1, max_size=30)


def parameters(counts: list[int]) -> list[ParameterSpec]:
    return [ParameterSpec(f"p{number}", (count,), "float32") for number, count in enumerate(counts)]


def loads_of(specs: list[ParameterSpec], shares: list[list[Share]], loads: list[int]) -> list[int]:
    filled = list(loads)
    for parts in shares:
        for share in parts:
            filled[share.server] += 4 * (share.stop - share.start)
    return filled


def check_covers(specs: list[ParameterSpec], shares: list[list[Share]], servers: int) -> None:
    for spec, parts in zip(specs, shares, strict=True):
        assert all(0 <= share.server < servers for share in parts)
        assert [share.start for share in parts] == [0, *(share.stop for share in parts[:-1])]
        assert parts[-1].stop == spec.count


@settings(deadline=None, derandomize=True)
@given(counts=sizes, servers=st.integers(1, 5))
def test_greedy_is_even_to_within_the_largest_parameter(counts: list[int], servers: int) -> None:
    specs = parameters(counts)
    shares = Greedy().place(specs, [0] * servers)
    check_covers(specs, shares, servers)
    filled = loads_of(specs, shares, [0] * servers)
    assert max(filled) - min(filled) <= max(spec.nbytes for spec in specs)


def test_greedy_counts_bytes_that_lie_there_already() -> None:
    assert Greedy().place(parameters([10, 10]), [1000, 0]) == [[Share(1, 0, 10)], [Share(1, 0, 10)]]


def test_greedy_counts_bytes_not_elements() -> None:
    wide = ParameterSpec("wide", (4,), "float64")
    narrow = [ParameterSpec(f"n{number}", (5,), "int8") for number in range(4)]
    shares = Greedy().place([*narrow, wide], [0, 0])
    assert [parts[0].server for parts in shares] == [1, 1, 1, 1, 0]


@settings(deadline=None, derandomize=True)
@given(counts=sizes, servers=st.integers(1, 5))
def test_round_robin_goes_in_order_of_registration(counts: list[int], servers: int) -> None:
    specs = parameters(counts)
    shares = RoundRobin().place(specs, [0] * servers)
    check_covers(specs, shares, servers)
    assert [parts[0].server for parts in shares] == [number % servers for number in range(len(counts))]


@settings(deadline=None, derandomize=True)
@given(counts=sizes, servers=st.integers(1, 5), over=st.integers(0, 2000))
def test_split_cuts_the_large_evenly(counts: list[int], servers: int, over: int) -> None:
    specs = parameters(counts)
    shares = Split(over=over).place(specs, [0] * servers)
    check_covers(specs, shares, servers)
    for spec, parts in zip(specs, shares, strict=True):
        lengths = [share.stop - share.start for share in parts]
        if spec.nbytes > over:
            assert len(parts) == min(servers, spec.count)
            assert max(lengths) - min(lengths) <= 1
        else:
            assert len(parts) == 1
    filled = loads_of(specs, shares, [0] * servers)
    assert max(filled) - min(filled) <= 4 * len(counts) + min(over, 4 * max(counts))


def test_an_empty_parameter_and_a_scalar_are_placed() -> None:
    specs = [ParameterSpec("empty", (0, 3), "float32"), ParameterSpec("scalar", (), "float32")]
    for placement in (Greedy(), RoundRobin(), Split(over=0)):
        check_covers(specs, placement.place(specs, [0, 0]), 2)


@pytest.mark.parametrize(
    "placement",
    [lambda name: 1 if name == "p0" else 0, {"p0": 1, "p1": 0, "not a parameter": 5}],
    ids=["function", "mapping"],
)
def test_the_user_says_where(placement: UserPlacement) -> None:
    assert place(placement, parameters([3, 4]), [0, 0]) == [[Share(1, 0, 3)], [Share(0, 0, 4)]]


def test_a_placement_object_is_asked() -> None:
    assert place(RoundRobin(), parameters([3, 4]), [0, 0]) == RoundRobin().place(parameters([3, 4]), [0, 0])


@pytest.mark.parametrize(
    ("placement", "field", "expected", "got"),
    [
        ({"p0": 0}, "placement", "a server for every parameter", "none for p1"),
        ({"p0": 0, "p1": 2}, "placement of p1", "a server from 0 to 1", "2"),
        (lambda _: -1, "placement of p0", "a server from 0 to 1", "-1"),
        (lambda _: "ps0", "placement of p0", "a server from 0 to 1", "'ps0'"),
        (3, "placement", "a placement, a function or a mapping of names", "3"),
    ],
)
def test_a_placement_that_cannot_work_is_refused(
    placement: UserPlacement, field: str, expected: str, got: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        place(placement, parameters([1, 1]), [0, 0])
    assert (caught.value.field, caught.value.expected, caught.value.got) == (field, expected, got)


def test_split_refuses_a_negative_size() -> None:
    with pytest.raises(ConfigError, match=r"Split\(over\): expected a number of bytes, 0 or more, got -1"):
        Split(over=-1)
