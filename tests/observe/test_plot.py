"""argosy plot: from a journal to a picture."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from argosy import cli, observe
from argosy.observe.plot import _draw, runs_of, smooth


def progress(time: float, step: int, **fields: object) -> dict[str, object]:
    return {"event": "progress", "time": time, "step": step, "gradients_per_second": 5.0, **fields}


def test_time_is_that_spent_training() -> None:
    events = [
        {"event": "started", "time": 100.0, "step": 0},
        progress(101.0, 10, loss=2.0),
        progress(103.0, 30, loss=None),
        {"event": "ended", "time": 104.0, "step": 30},
        {"event": "started", "time": 9000.0, "step": 20},  # resumed from an earlier step, hours later
        progress(9002.0, 40, loss=0.5),
    ]
    first, second = runs_of(events)
    assert (first.steps, first.times) == ([10.0, 30.0], [1.0, 3.0])
    assert first.losses[0] == 2.0
    assert math.isnan(first.losses[1])
    assert (second.steps, second.times, second.speeds) == ([40.0], [5.0], [5.0])


def test_smoothing_passes_over_what_is_not_known() -> None:
    assert smooth([1.0, math.nan, 3.0, 5.0], width=3) == [1.0, 2.0, 4.0, 4.0]
    assert smooth([1.0, 2.0], width=0) == [1.0, 2.0]
    assert math.isnan(smooth([math.nan], width=9)[0])


@pytest.mark.parametrize("output", [None, "other.png"])
def test_a_png_is_written(tmp_path: Path, output: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    observe.record(tmp_path, "started", step=0)
    for step in range(20):
        observe.record(tmp_path, "progress", step=step, loss=1 / (step + 1), gradients_per_second=step)
    words = [] if output is None else ["-o", str(tmp_path / output)]
    assert cli.main(["plot", str(tmp_path), *words]) == 0
    written = tmp_path / (output or "plot.png")
    assert capsys.readouterr().out == f"wrote {written}\n"
    assert written.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    observe.record(tmp_path, "progress", step=1, loss=0.5)
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "pip install 'argosy[plot]'" in capsys.readouterr().err


def test_what_cannot_be_drawn_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "expected a session's directory, with events.jsonl" in capsys.readouterr().err
    observe.record(tmp_path, "started", step=0)
    observe.record(tmp_path, "progress", step=0, gradients_per_second=0.0)
    assert cli.main(["plot", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert "expected progress with a loss or a speed in events.jsonl, got none" in err
    assert out == ""
    assert not (tmp_path / "plot.png").exists()
    observe.record(tmp_path, "progress", step=1, loss=0.5)
    pytest.importorskip("matplotlib")
    assert cli.main(["plot", str(tmp_path), "-o", str(tmp_path / "no" / "where.png")]) == 2
    assert "--output: expected a file that can be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("events", "rows"),
    [
        ([{"loss": 0.5}], ["loss"]),  # a short run: one number, and no speed yet
        ([{"gradients_per_second": 7.0}], ["gradients/s"]),
        ([{"loss": 0.5}, {"gradients_per_second": 7.0}, {"loss": 0.25}], ["loss", "gradients/s"]),
    ],
)
def test_all_axes_show_something(events: list[dict[str, float]], rows: list[str]) -> None:
    """Numbers and counts have lines of their own: what is known of each is drawn, without gaps."""
    pytest.importorskip("matplotlib")
    runs = runs_of({"event": "progress", "time": 9.0, "step": n, **e} for n, e in enumerate(events))
    figure = _draw(runs, "title")
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()] == rows
    assert len(figure.axes) == 2 * len(rows)
    for axes in figure.axes:
        faint, heavy = axes.get_lines()
        points = len(faint.get_xdata())
        assert points
        assert (heavy.get_marker() == "o") == (points == 1)
        assert all(math.isfinite(value) for value in faint.get_ydata())
