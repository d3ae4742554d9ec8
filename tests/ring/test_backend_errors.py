"""The backend when something is wrong, and in modes and with tensors that are not the usual.

Each rank is a process; backend_errors.py and backend_values.py say what they do.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import ranks

pytestmark = pytest.mark.processes
ERRORS = Path(__file__).with_name("backend_errors.py")
VALUES = Path(__file__).with_name("backend_values.py")


def test_the_death_of_a_rank_is_an_error_that_names_it(tmp_path: Path) -> None:
    """From `wait()`, from the future, from functional collectives and DistributedDataParallel."""
    *others, killed = ranks(ERRORS, 3, tmp_path, "death")
    assert killed[0] == -9
    for code, output in others:
        assert code == 0, output
        assert "ok" in output


def test_a_rank_that_does_not_come_is_an_error_that_names_it(tmp_path: Path) -> None:
    for code, output in ranks(ERRORS, 3, tmp_path, "late"):
        assert code == 0, output
        assert "ok" in output


@pytest.mark.parametrize("size", [2, 3])
def test_calls_that_do_not_fit_together_are_refused_on_every_rank(size: int, tmp_path: Path) -> None:
    for code, output in ranks(ERRORS, size, tmp_path, "calls"):
        assert code == 0, output
        assert "ok" in output


def test_unusual_modes_and_tensors_give_the_right_values(tmp_path: Path) -> None:
    for code, output in ranks(VALUES, 3, tmp_path, ""):
        assert code == 0, output
        assert "ok" in output
