"""Profile: traces of the chosen steps, and of no others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hooked import alone, train

from argosy.errors import ConfigError
from argosy.hooks import Profile


def test_steps_that_follow_each_other_share_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(alone(), [Profile([0, 3, 4], tmp_path / "traces")], last_step=6)
    written = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert written == ["worker0-steps0-0.json", "worker0-steps3-4.json"]
    trace = json.loads((tmp_path / "traces" / "worker0-steps3-4.json").read_text())
    backwards = [e for e in trace["traceEvents"] if e.get("name") == "aten::linear"]
    assert len(backwards) == 2
    assert "trace of steps 3 to 4 is in " in capsys.readouterr().err


def test_a_trace_that_the_end_cuts_short_is_written(tmp_path: Path) -> None:
    train(alone(), [Profile(range(1, 100))], last_step=3, directory=tmp_path)
    assert [path.name for path in (tmp_path / "profile").iterdir()] == ["worker0-steps1-2.json"]


def test_other_workers_write_none(tmp_path: Path) -> None:
    train(alone(), [Profile(range(3), tmp_path / "traces", worker=1)])
    assert not (tmp_path / "traces").exists()


def test_a_folder_is_needed() -> None:
    with pytest.raises(ConfigError, match="give the session a directory"):
        train(alone(), [Profile(range(3))])
