"""In which order a step's operations run: what others wait for comes first, and nothing before its time."""

from __future__ import annotations

import random

import pytest
import torch

from argosy.remote.operations.instructions import TENSOR, Result, Template
from argosy.remote.operations.kernel import Kernel
from argosy.remote.plan.dependencies import PlanItem
from argosy.remote.plan.priorities import Priorities

LONG, SHORT = 1e-3, 1e-6


def making(count: int) -> Kernel:
    """An operation that makes so many floats."""
    results = (Result((count,), (1,), "float32"),)
    template = Template(0, "aten::relu", [[TENSOR]], {}, 1, 0, "cpu:0", (0,), results)
    return Kernel(template, torch.device("cpu"))


SMALL, LARGE = making(10), making(10**6)


def item(index: int, kernel: Kernel | None, *after: int) -> PlanItem:
    """The register of what an item makes has its number."""
    return PlanItem(index, tuple(after), (index,), kernel=kernel, after=set(after))


def order(items: list[PlanItem], costs: list[float]) -> list[int]:
    return [each.index for each in Priorities(items, costs).order(items)]


def test_of_two_that_are_sent_the_larger_comes_first() -> None:
    items = [item(0, SMALL), item(1, SMALL, 0), item(2, None, 1), item(3, LARGE, 0), item(4, None, 3)]
    assert order(items, [LONG, LONG, 0, LONG, 0]) == [0, 3, 4, 1, 2]
    items.append(item(5, SMALL, 1))  # quick, and seen by nobody
    assert order(items, [LONG, LONG, 0, LONG, 0, SHORT]) == [0, 3, 4, 1, 2, 5]


def test_of_two_alike_the_first_comes_first() -> None:
    items = [item(0, LARGE), item(1, LARGE, 0), item(2, None, 1), item(3, LARGE), item(4, LARGE, 3)]
    items.append(item(5, None, 4))
    assert order(items, [LONG, LONG, 0, LONG, LONG, 0]) == [0, 1, 2, 3, 4, 5]


def test_what_is_far_behind_is_not_waited_for() -> None:
    items = [item(0, SMALL), item(1, None, 0), item(2, SMALL), item(3, LARGE, 2), item(4, None, 3)]
    assert order(items, [LONG, 0, LONG, 0.5 * LONG, 0]) == [2, 3, 4, 0, 1]
    assert order(items, [LONG, 0, 5 * LONG, 0.5 * LONG, 0]) == [0, 1, 2, 3, 4]


def test_what_something_here_comes_after_stays_where_it_is() -> None:
    items = [item(0, SMALL), item(1, None, 0), item(2, SMALL, 0), item(3, LARGE), item(4, None, 3)]
    assert order(items, [LONG, 0, LONG, LONG, 0]) == [0, 1, 2, 3, 4]


def test_an_errand_does_not_wait() -> None:
    items = [item(0, LARGE), item(1, None, 0), item(2, SMALL), item(3, None, 2)]
    assert order(items, [LONG, 0, SHORT, 0]) == [2, 3, 0, 1]


def test_where_much_is_made_the_order_of_the_program_stays() -> None:
    huge = making(20 * 10**6)
    items = [item(0, SMALL), item(1, None, 0), item(2, huge), item(3, None, 2)]
    assert order(items, [LONG, 0, LONG, 0]) == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_comes_before_what_it_comes_after(seed: int) -> None:
    rng = random.Random(seed)
    items = []
    for index in range(40):
        after = [before for before in range(index) if rng.random() < 0.1]
        kernel = None if len(after) == 1 and rng.random() < 0.3 else rng.choice([SMALL, LARGE])
        items.append(item(index, kernel, *after))
    got = order(items, [rng.choice([SHORT, LONG]) for _ in items])
    assert sorted(got) == list(range(40))
    for position, index in enumerate(got):
        assert items[index].after <= set(got[:position])
