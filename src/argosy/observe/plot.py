"""`argosy plot DIRECTORY`: loss and speed over steps and over time, from `events.jsonl` to a PNG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from argosy.errors import ConfigError
from argosy.observe.journal import NAME, read

# The heavy line is a mean over such a share of a run's points.
_SMOOTHED_SHARE = 1 / 40
_HOUR = 3600.0


@dataclass
class TrainingRun:
    """One start of a training: a point for each look at it. What was not known is NaN."""

    steps: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)


def runs_of(events: Iterable[Mapping[str, Any]]) -> list[TrainingRun]:
    """The runs of a journal. Time is that spent training: the pauses between runs are left out."""
    runs = [TrainingRun()]
    trained = 0.0
    before: float | None = None
    for event in events:
        if event["event"] == "started":
            runs.append(TrainingRun())
            before = event.get("time")
        elif event["event"] == "progress":
            now = float(event["time"])
            trained += max(0.0, now - (now if before is None else before))
            before = now
            _add(runs[-1], event, trained)
    return [run for run in runs if run.steps]


def _add(run: TrainingRun, event: Mapping[str, Any], trained: float) -> None:
    run.steps.append(float(event["step"]))
    run.times.append(trained)
    run.losses.append(_number(event.get("loss")))
    # The first look at a run has nothing to compare with.
    run.speeds.append(_number(event.get("gradients_per_second") or None))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def smooth(values: Sequence[float], width: int) -> list[float]:
    """The mean of `width` points around each; what is NaN is passed over."""
    half = width // 2
    result = []
    for place in range(len(values)):
        around = [v for v in values[max(0, place - half) : place + half + 1] if not math.isnan(v)]
        result.append(sum(around) / len(around) if around else math.nan)
    return result


def plot(directory: Path, output: Path | None = None) -> Path:
    """Draw a directory's journal to a PNG, default `plot.png` beside it; the file that was written."""
    try:
        runs = runs_of(read(directory))
    except OSError as error:
        raise ConfigError(
            "DIRECTORY", f"a session's directory, with {NAME}", f"{directory} ({error.strerror})"
        ) from None
    runs = [run for run in runs if any(_known(values) for values in (run.losses, run.speeds))]
    if not runs:
        remedy = "log the loss with session.log(loss=...); the speed is known after one second"
        raise ConfigError(
            "DIRECTORY", f"progress with a loss or a speed in {NAME}", f"none in {directory / NAME}", remedy
        )
    target = directory / "plot.png" if output is None else output
    figure = _draw(runs, str(directory))
    try:
        figure.savefig(target, format="png", dpi=130)
    except OSError as error:
        raise ConfigError("--output", "a file that can be written", f"{target} ({error.strerror})") from None
    return target


def _known(values: Iterable[float]) -> bool:
    """Whether any of these is known."""
    return any(not math.isnan(value) for value in values)


def _draw(runs: list[TrainingRun], title: str) -> Any:
    """What is known: a row for the loss, if any was logged, and one for the speed."""
    try:
        from matplotlib.figure import Figure  # and not pyplot: no window, no state
    except ImportError:
        raise ConfigError(
            "argosy plot", "the package matplotlib", "none", "pip install 'argosy[plot]'"
        ) from None
    longest = max(run.times[-1] for run in runs)
    unit, scale = ("hours", _HOUR) if longest > 3 * _HOUR else ("seconds", 1.0)
    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(title)
    shown = [name for name in ("losses", "speeds") if any(_known(getattr(run, name)) for run in runs)]
    axes = figure.subplots(len(shown), 2, sharex="col", sharey="row", squeeze=False)
    for run in runs:
        times = [seconds / scale for seconds in run.times]
        for row, name in enumerate(shown):
            values: list[float] = getattr(run, name)
            colour = f"C{('losses', 'speeds').index(name)}"
            known = [place for place, value in enumerate(values) if not math.isnan(value)]
            points = [values[place] for place in known]
            mean = smooth(points, int(len(points) * _SMOOTHED_SHARE))
            marker = "o" if len(points) == 1 else ""  # a line of one point is not seen
            for column, every in enumerate((run.steps, times)):
                places = [every[place] for place in known]
                axes[row][column].plot(places, points, color=colour, alpha=0.3, lw=0.8)
                axes[row][column].plot(places, mean, color=colour, lw=1.6, marker=marker)
    for row, name in enumerate(shown):
        axes[row][0].set_ylabel("loss" if name == "losses" else "gradients/s")
        if name == "speeds":
            axes[row][0].set_ylim(bottom=0)
    axes[-1][0].set_xlabel("global step")
    axes[-1][1].set_xlabel(f"{unit} of training")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure
