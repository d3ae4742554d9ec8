"""Two trees in turns: a tree against itself, with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.compare import KINDS, launches, measure_pair
from benchmarks.running import ROOT


def test_each_side_imports_its_own_tree(tmp_path: Path) -> None:
    for kind in KINDS.values():
        for launch in launches(kind, Path("elsewhere"), 1, tmp_path / "gate", tmp_path):
            path = next(word for word in launch.argv if word.startswith("PYTHONPATH="))
            assert path.removeprefix("PYTHONPATH=").split(":") == ["elsewhere/src", str(ROOT)]


@pytest.mark.processes
def test_a_tree_against_itself_takes_turns(tmp_path: Path) -> None:
    ratio = measure_pair(KINDS["allreduce"], (ROOT, ROOT), turns=1, scratch=tmp_path)

    assert 0.05 < ratio < 20  # a measurement, however noisy the machine is
