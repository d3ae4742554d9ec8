"""The small examples run as they are, alone."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "sessions"
SAYS = {
    "resume": r"after 200 steps: 3\.\d+ x \+ 1\.\d+|after 200 steps: 2\.9\d+ x \+ \S+",
    "averages": r"the averages [23]\.\d+",
    "own_hook": r"stopped by itself at step \d+",
    "learning_rate": r"after 200 steps: \S+ x \+ \S+",
}


@pytest.mark.parametrize("name", SAYS)
def test_it_says_what_came_of_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [name, str(tmp_path)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(SAYS[name], capsys.readouterr().out)


def test_resumed_it_is_done_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["resume", str(tmp_path)])
    said = []
    for _ in range(2):
        runpy.run_path(str(EXAMPLES / "resume.py"), run_name="__main__")
        captured = capsys.readouterr()
        said.append(captured.out)
    assert said[0] == said[1]
    assert "step 200 is reached already" in captured.err


def test_none_is_left_out() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SAYS, "evaluator"}
