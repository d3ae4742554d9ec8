from __future__ import annotations

import pytest
from benchmarks.figures import (
    NoWindow,
    Window,
    bootstrap,
    common_window,
    gradients_per_second,
    percentile,
    rate_in,
    ratios,
    short,
    spread,
)
from hypothesis import given
from hypothesis import strategies as st


def steady(first: float, every: float, count: int) -> list[float]:
    return [first + every * number for number in range(count)]


def test_the_window_begins_when_the_last_worker_does_and_ends_with_the_first_that_stops() -> None:
    window = common_window([[1.0, 2.0, 9.0], [3.0, 4.0, 12.0]], warmup=0.5)
    assert window == Window(3.5, 9.0)


def test_what_a_worker_does_alone_does_not_count() -> None:
    fast_while_alone = steady(0.0, 0.01, 500) + steady(5.0, 0.1, 101)
    assert gradients_per_second([fast_while_alone, steady(5.0, 0.1, 101)], 1.0) == pytest.approx(20.0)


@pytest.mark.parametrize("stamps", [[], [[]], [[1.0, 2.0], []], [[0.0, 1.0], [2.0, 3.0]]])
def test_workers_that_never_ran_together_have_no_rate(stamps: list[list[float]]) -> None:
    with pytest.raises(NoWindow):
        gradients_per_second(stamps, 0.0)


def test_a_warm_up_longer_than_the_run_is_said() -> None:
    with pytest.raises(NoWindow, match=r"together for 1\.00 s, 5\.0 s of it warm-up"):
        common_window([[0.0, 1.0]], 5.0)


@given(every=st.floats(0.001, 1.0), offset=st.floats(0.0, 1.0), length=st.integers(4, 50))
def test_a_steady_worker_has_its_rate_wherever_the_window_cuts(
    every: float, offset: float, length: int
) -> None:
    stamps = steady(0.0, every, length + 3)
    window = Window(offset * every, (offset + length) * every)
    assert rate_in(stamps, window) == pytest.approx(1 / every)


def test_one_step_is_no_rate() -> None:
    with pytest.raises(NoWindow, match="1 steps"):
        rate_in([0.0, 5.0, 10.0], Window(4.0, 6.0))


def test_ratios_are_paired_by_round() -> None:
    assert ratios([10.0, 20.0], [5.0, 40.0]) == [2.0, 0.5]
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


def test_a_spread_is_a_median_with_extremes() -> None:
    found = spread([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high) == (2.0, 1.0, 3.0)
    assert str(found) == "2.00 (1.00–3.00)"


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=20))
def test_a_bootstrap_interval_holds_the_median_and_is_repeatable(values: list[float]) -> None:
    found = bootstrap(values, samples=200)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found == bootstrap(values, samples=200)


def test_more_pairs_make_the_interval_narrower() -> None:
    few, many = bootstrap([0.9, 1.0, 1.1]), bootstrap([0.9, 1.0, 1.1] * 30)
    assert many.high - many.low < few.high - few.low


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 5.0), (0.9, 9.0), (1.0, 10.0)])
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    assert percentile([float(number) for number in range(10, 0, -1)], share) == expected


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1234.5, "1,234"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.012")]
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text
