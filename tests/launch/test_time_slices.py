"""A wish for the scheduler, seen in the kernel's own record of a process."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from argosy.launch.core_pinning import set_slice


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        yield sleeper.pid
        sleeper.kill()


def _slice(pid: int) -> float:
    """The slice that the kernel keeps for a process, in seconds."""
    found = re.search(r"^se\.slice\s*:\s*(\d+)", Path(f"/proc/{pid}/sched").read_text(), re.MULTILINE)
    if found is None:
        pytest.skip("this kernel does not tell the slice of a process")
    return int(found[1]) / 1e9


def test_a_slice_is_heeded_and_all_else_stays(process: int) -> None:
    os.setpriority(os.PRIO_PROCESS, process, 3)
    os.sched_setscheduler(process, os.SCHED_BATCH, os.sched_param(0))
    before = _slice(process)
    set_slice(process, 0.05)
    if (after := _slice(process)) == before:
        pytest.skip("this kernel gives every process the same slice: Linux before 6.12")
    assert after == pytest.approx(0.05)
    assert os.getpriority(os.PRIO_PROCESS, process) == 3
    assert os.sched_getscheduler(process) == os.SCHED_BATCH


def test_a_process_that_has_gone_is_told_of() -> None:
    gone = 2**22 - 1  # the largest number that a process may have
    with pytest.raises(ProcessLookupError):
        set_slice(gone, 0.05)
