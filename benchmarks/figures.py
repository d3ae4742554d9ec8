"""From timestamps to rates, and from rates to ratios with their spread. Pure: no clock, no processes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


class NoWindow(ValueError):
    """The workers never ran together for long enough."""


@dataclass(frozen=True)
class Window:
    """A stretch of time, in seconds of the monotonic clock, which all processes of a machine share."""

    start: float
    stop: float


@dataclass(frozen=True)
class Spread:
    """A median and the range around it: the extremes of the rounds, or a bootstrap interval."""

    median: float
    low: float
    high: float
    values: tuple[float, ...]

    def __str__(self) -> str:
        return f"{short(self.median)} ({short(self.low)}–{short(self.high)})"


def short(value: float) -> str:
    """A number with three figures that mean something, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.2g}"


def common_window(stamps: Sequence[Sequence[float]], warmup: float) -> Window:
    """When all workers run: from the last one's first step, plus `warmup`, to the first one's last step."""
    if not stamps or not all(stamps):
        raise NoWindow("a worker made no step")
    start = max(worker[0] for worker in stamps) + warmup
    stop = min(worker[-1] for worker in stamps)
    if stop <= start:
        raise NoWindow(
            f"all workers ran together for {stop - start + warmup:.2f} s, {warmup} s of it warm-up"
        )
    return Window(start, stop)


def rate_in(stamps: Sequence[float], window: Window) -> float:
    """Steps a second of one worker, between its own first and last step inside the window.

    Counting whole steps over the window's length would be off by up to a step, which matters for slow ones.
    """
    inside = [stamp for stamp in stamps if window.start <= stamp <= window.stop]
    if len(inside) < 2 or inside[-1] <= inside[0]:
        raise NoWindow(f"{len(inside)} steps in the window of {window.stop - window.start:.2f} s")
    return (len(inside) - 1) / (inside[-1] - inside[0])


def gradients_per_second(stamps: Sequence[Sequence[float]], warmup: float) -> float:
    """The gradients of all workers together, while all of them run."""
    window = common_window(stamps, warmup)
    return sum(rate_in(worker, window) for worker in stamps)


def spread(values: Sequence[float]) -> Spread:
    """The median of the rounds, with the smallest and the largest."""
    return Spread(median(values), min(values), max(values), tuple(values))


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Round by round: what ran next to each other is compared, so that a slow minute hits both."""
    return [a / b for a, b in zip(over, under, strict=True)]


def bootstrap(
    values: Sequence[float], confidence: float = 0.95, samples: int = 5000, seed: int = 0
) -> Spread:
    """The median, with the bootstrap confidence interval of the median (percentiles, repeatable)."""
    generator = random.Random(seed)
    medians = sorted(median(generator.choices(values, k=len(values))) for _ in range(samples))
    tail = (1 - confidence) / 2
    low = medians[int(tail * (samples - 1))]
    high = medians[round((1 - tail) * (samples - 1))]
    return Spread(median(values), low, high, tuple(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.4999) - 1))]
