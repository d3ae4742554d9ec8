"""The end of a launcher: Ctrl-C, SIGTERM, kill -9, a reader that goes away. Nothing may stay."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from typing import IO

import psutil
import pytest
from launching import Launcher

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

HANG = """
subprocess.Popen([sys.executable, "-S", "-c", "import signal; print('child', flush=True); signal.pause()"])
hang()
"""
STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("stubborn")
hang()
"""
EVERYBODY = ("/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1")


def printed(word: str) -> tuple[str, ...]:
    return tuple(f"[{task}] {word}\n" for task in EVERYBODY)


def is_full(pipe: IO[bytes]) -> bool:
    """Asked of a writing end: a pipe may be full with fewer bytes than it could hold."""
    writer = os.open(f"/proc/self/fd/{pipe.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        poller = select.poll()
        poller.register(writer, select.POLLOUT)
        return not poller.poll(0)
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_everything(launcher: Launcher, number: int, code: int) -> None:
    launch = launcher.start(HANG)
    launch.until(*printed("child"))
    began = time.monotonic()
    launch.process.send_signal(number)
    assert launch.finish() == code
    assert time.monotonic() - began < 3
    assert "ending 3 tasks, with 30 s to save and end; press Ctrl-C again to stop at once\n" in launch.errors


@pytest.mark.parametrize("launcher", ["forked"], indirect=True)  # the supervisor's patience, once
def test_who_ignores_it_is_killed(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARGOSY_GRACE", "3")
    launch = launcher.start(STUBBORN)
    launch.until(*printed("stubborn"))
    began = time.monotonic()
    launch.process.send_signal(signal.SIGINT)
    assert launch.finish() == 130
    assert 3 <= time.monotonic() - began < 8


def test_a_second_time_kills_at_once(launcher: Launcher) -> None:
    launch = launcher.start(STUBBORN, stderr=subprocess.STDOUT)
    launch.until(*printed("stubborn"))
    began = time.monotonic()
    launch.process.send_signal(signal.SIGINT)
    launch.until("SIGINT: ending 3 tasks")
    launch.process.send_signal(signal.SIGINT)
    assert launch.finish() == 130
    assert time.monotonic() - began < 2.5


def test_ctrl_c_is_obeyed_while_nobody_reads(launcher: Launcher) -> None:
    body = """
    if job == "ps":
        print("ready", flush=True)
        hang()
    while True:
        print("x" * 1000)
    """
    launch = launcher.start(body)
    launch.until("[/job:worker/task:0] x")
    assert launch.process.stdout is not None
    while not is_full(launch.process.stdout):
        time.sleep(0.01)
    launch.process.send_signal(signal.SIGINT)
    assert launch.process.wait(timeout=10) == 130
    launch.finish()


def test_a_reader_that_goes_away_ends_the_job(launcher: Launcher) -> None:
    body = """
    print("ready")
    if (job, index) == ("worker", 0):
        wait()
        print("for nobody")
    hang()
    """
    launch = launcher.start(body, stderr=subprocess.DEVNULL)
    launch.until(*printed("ready"))
    assert launch.process.stdout is not None
    launch.process.stdout.close()
    launch.open_gate()
    assert launch.process.wait() == 128 + signal.SIGPIPE


def test_kill_9_leaves_nothing(launcher: Launcher) -> None:
    launch = launcher.start(HANG)
    launch.until(*printed("child"))
    # The launcher, its guard, three tasks, what each of them started, and who would fork them again.
    assert len(launcher.alive()) == 8 + launcher.forked
    launch.process.kill()
    launch.process.wait()
    assert launcher.still_alive(seconds=5) == []
    assert not list(launcher.temporary.iterdir())
    launch.finish()


@pytest.mark.parametrize("started", [1, 2, 3, 5])
def test_kill_9_while_tasks_start_leaves_nothing(launcher: Launcher, started: int) -> None:
    launcher.patience = 5.0
    launch = launcher.start(HANG, "--workers", "8")
    itself = psutil.Process(launch.process.pid)
    while len(itself.children()) < started:
        pass
    os.kill(launch.process.pid, signal.SIGKILL)
    launch.process.wait()
    launch.finish()
