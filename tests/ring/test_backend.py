"""Plain PyTorch on the backend: processes that know nothing of Argosy but its name."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from processes import ranks

pytestmark = pytest.mark.processes
PROGRAM = Path(__file__).with_name("plain_torch.py")


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_collectives_and_data_parallel(size: int, tmp_path: Path) -> None:
    for code, output in ranks(PROGRAM, size, tmp_path, "work"):
        assert code == 0, output
        assert "ok" in output


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_every_collective_gives_what_gloo_gives(size: int, tmp_path: Path) -> None:
    for code, output in ranks(PROGRAM.with_name("beside_gloo.py"), size, tmp_path, ""):
        assert code == 0, output
        assert "ok" in output


def test_a_rank_that_is_killed_is_named_by_all_the_others(tmp_path: Path) -> None:
    began = time.monotonic()
    (first, killed, third) = ranks(PROGRAM, 3, tmp_path, "die")
    assert killed[0] == -9
    for code, output in (first, third):
        assert code == 1
        assert "TaskLost: lost rank 1: its process has ended" in output
    assert time.monotonic() - began < 60
