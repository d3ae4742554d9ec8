"""argosy plot: from a journal to a picture."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from argosy import cli, observe
from argosy.observe.plot import runs_of, smooth


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
    observe.record(tmp_path, "progress", step=1)
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "pip install 'argosy[plot]'" in capsys.readouterr().err


def test_what_cannot_be_drawn_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "expected a session's directory, with events.jsonl" in capsys.readouterr().err
    observe.record(tmp_path, "started", step=0)
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "expected progress in events.jsonl" in capsys.readouterr().err
    observe.record(tmp_path, "progress", step=1)
    pytest.importorskip("matplotlib")
    assert cli.main(["plot", str(tmp_path), "-o", str(tmp_path / "no" / "where.png")]) == 2
    assert "--output: expected a file that can be written" in capsys.readouterr().err
