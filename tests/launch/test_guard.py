"""What the guard does for a launcher that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from argosy.launch.guard import Guard, orders


@pytest.mark.parametrize(
    ("received", "groups", "directories"),
    [
        (b"", set(), []),
        (b"+10\0+11\0", {10, 11}, []),
        (b"+10\0-10\0+12\0", {12}, []),
        (b"d/tmp/a b\nc\0+10\0", {10}, [b"/tmp/a b\nc"]),
        (b"d/tmp/a\0+10\0.\0", set(), []),
    ],
)
def test_orders(received: bytes, groups: set[int], directories: list[bytes]) -> None:
    assert orders(received) == (groups, directories)


@pytest.mark.processes
@pytest.mark.timeout(20)
def test_a_dismissed_guard_touches_nothing(tmp_path: Path) -> None:
    guard = Guard()
    guard.watch_directory(tmp_path)
    guard.dismiss()
    assert tmp_path.is_dir()


@pytest.mark.processes
@pytest.mark.timeout(20)
def test_a_guard_that_was_killed_does_no_harm() -> None:
    guard = Guard()
    os.kill(guard.pid, signal.SIGKILL)
    os.waitid(os.P_PID, guard.pid, os.WEXITED | os.WNOWAIT)
    guard.forget(1)
    guard.dismiss()


@pytest.mark.processes
@pytest.mark.timeout(20)
def test_the_guard_is_light() -> None:
    code = "import sys, argosy.launch.guard; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "msgspec", "click", "zmq"} & set(done.stdout.split())
