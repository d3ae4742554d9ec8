"""Servers and workers killed with -9 under the launcher, which starts them again: nothing acknowledged is
lost. A synchronous job has the bits of one in which nobody dies; in an asynchronous one every shard counts
exactly the updates.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from jobs import Jobs, jobs
from restarted_jobs import COUNT, EXACT, SERVERS, TASKS, RestartedJob, fresh

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
SYNC = ("--mode", "sync")
faults = pytest.mark.faults
_undisturbed: dict[tuple[int, str], set[str]] = {}


def exact(jobs: Jobs, steps: int, kind: str, lane: str) -> RestartedJob:
    return RestartedJob(jobs, EXACT, SYNC, STEPS=str(steps), KIND=kind, ARGOSY_LANE=lane)


def undisturbed(jobs: Jobs, steps: int, kind: str) -> set[str]:
    """What a run without deaths comes to, on any lane."""
    if (steps, kind) not in _undisturbed:
        job = exact(fresh(jobs, "undisturbed"), steps, kind, "auto")
        job.hurry()
        _undisturbed[steps, kind] = job.result()
    return _undisturbed[steps, kind]


def check_bits(jobs: Jobs, job: RestartedJob, expected: set[str]) -> None:
    found = job.result()
    assert found == expected, f"{expected}\n{job}"
    assert sum(text.startswith("done ") for text in found) == 1, job


# --- synchronous: the same bits -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seed", "kills", "kind", "lane"),
    [
        (1, 4, "", "auto"),
        pytest.param(2, 10, "", "auto", marks=faults),
        pytest.param(3, 10, "", "network", marks=faults),
        pytest.param(4, 10, "clip", "auto", marks=faults),
        pytest.param(5, 10, "clip", "network", marks=faults),
        pytest.param(6, 10, "directory", "auto", marks=faults),
        pytest.param(7, 10, "norm", "auto", marks=faults),
        pytest.param(8, 10, "norm", "network", marks=faults),
        pytest.param(9, 10, "average", "auto", marks=faults),
    ],
)
def test_random_kills_leave_the_bits_as_they_are(
    jobs: Jobs, seed: int, kills: int, kind: str, lane: str
) -> None:
    steps = 12 * kills
    expected = undisturbed(jobs, steps, kind)
    job = exact(fresh(jobs, "killed"), steps, kind, lane)
    job.kill_at_random(seed, kills)
    check_bits(jobs, job, expected)


# --- asynchronous: every shard counts -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seed", "kills", "lane", "words"),
    [
        (1, 3, "auto", ()),
        pytest.param(2, 10, "auto", (), marks=faults),
        pytest.param(3, 10, "network", (), marks=faults),
        pytest.param(4, 10, "auto", ("--max-staleness", 1), marks=faults),
        pytest.param(5, 10, "auto", ("--mode", "sync", "--aggregate", 2), marks=faults),
        pytest.param(6, 10, "network", ("--mode", "sync", "--aggregate", 2, "--late", "fold"), marks=faults),
        pytest.param(7, 10, "auto", ("--mode", "sync", "--aggregate", 4, "--tokens", 2), marks=faults),
        pytest.param(8, 10, "network", ("--mode", "sync", "--aggregate", 4, "--tokens", 2), marks=faults),
    ],
)
def test_random_kills_leave_every_shard_with_all_updates(
    jobs: Jobs, seed: int, kills: int, lane: str, words: tuple[object, ...]
) -> None:
    steps = 60 * kills
    job = RestartedJob(jobs, COUNT, words or ("--mode", "async"), STEPS=str(steps), ARGOSY_LANE=lane)
    job.kill_at_random(seed, kills, gap=15)
    assert job.result() == {f"done {steps} {steps} {steps}"}, job


# --- many at once, and at bad moments -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("victims", "lane"),
    [
        (SERVERS, "auto"),
        pytest.param(SERVERS, "network", marks=faults),
        pytest.param(TASKS[len(SERVERS) :], "auto", marks=faults),
    ],
)
def test_all_of_a_kind_at_once(jobs: Jobs, victims: tuple[str, ...], lane: str) -> None:
    expected = undisturbed(jobs, 48, "")
    job = exact(fresh(jobs, "killed"), 48, "", lane)
    job.until_step(9)
    job.kill(*victims)
    job.until_step(20)
    job.kill(*victims)
    job.until_back(*victims)
    job.hurry()
    check_bits(jobs, job, expected)


@faults
@pytest.mark.parametrize("server", [0, 1])
def test_a_server_that_dies_again_while_it_recovers(jobs: Jobs, server: int) -> None:
    expected = undisturbed(jobs, 48, "")
    job = exact(fresh(jobs, "killed"), 48, "", "auto")
    victim = SERVERS[server]
    job.until_step(9)
    job.kill(victim)
    job.kill(victim)  # as soon as there is a process
    back = f"[{victim}] argosy: {victim} is back at step "
    job.kill_when(victim, back, 1)  # it has found its state, and gets in touch
    job.until_back(victim)
    job.hurry()
    check_bits(jobs, job, expected)


@faults
@pytest.mark.parametrize("victim", [*SERVERS, TASKS[2], TASKS[3]])
@pytest.mark.parametrize("moment", ["serves at", "joined", "registering"])
def test_a_task_that_dies_at_the_very_start(jobs: Jobs, victim: str, moment: str) -> None:
    expected = undisturbed(jobs, 48, "")
    job = exact(fresh(jobs, "killed"), 48, "", "auto")
    match moment:
        case "serves at":
            job.launcher.until(f"[{SERVERS[1]}] argosy: {SERVERS[1]} serves at")
        case "joined":
            job.launcher.until(f"[{TASKS[2]}] joined")
        case _:
            job.launcher.until(f"[{TASKS[2]}] session")
    job.kill(victim)
    job.until_back(victim)
    job.hurry()
    check_bits(jobs, job, expected)


@faults
@pytest.mark.parametrize("victim", SERVERS)
@pytest.mark.parametrize("before", [1, 0])
def test_a_server_that_dies_at_the_very_end(jobs: Jobs, victim: str, before: int) -> None:
    """Before the last step, or when it is made and the workers get their last values."""
    expected = undisturbed(jobs, 48, "")
    job = exact(fresh(jobs, "killed"), 48, "", "auto")
    job.until_step(30)
    job.until_step(48 - before)
    job.kill(victim)
    check_bits(jobs, job, expected)


@pytest.mark.parametrize("on_loss", ["wait", pytest.param("shrink", marks=faults)])
def test_a_gradient_that_is_lost_with_its_server_and_its_worker(jobs: Jobs, on_loss: str) -> None:
    """Server 1 stands still, so that the step is decided and not made there; then both die."""
    job = RestartedJob(jobs, EXACT, (*SYNC, "--on-loss", on_loss), STEPS="100000", ARGOSY_LANE="auto")
    server, worker = SERVERS[1], TASKS[3]
    job.until_step(5)
    job.launched.signal(server, signal.SIGSTOP)
    job.until_all_push()
    time.sleep(0.5)  # the coordinator has seen all of them by now
    if on_loss == "wait":
        job.kill(server, worker)
    else:
        job.kill(worker)
        job.launcher.until(f"{worker} at {job.launched.address(worker)} is gone; the job goes on without it")
        job.until_back(worker)
        job.kill(server)
    assert job.launcher.wait(60.0) == 1, job
    told = (
        rf"its gradient for step (\d+) was lost when {server} at \S+ died, "
        "and the process that could send it again is gone, too; start the job again"
    )
    line = rf"^\[(/job:\S+)\] argosy: error: the job was ended by {worker}: {told}"
    said = re.findall(line, job.launcher.err, re.MULTILINE)
    assert {task for task, _ in said} >= set(SERVERS), job
    assert {int(step) for _, step in said} == {job.step() + 1}, job


@faults
@pytest.mark.parametrize("victim", SERVERS)
def test_a_server_that_stands_still_for_a_while(jobs: Jobs, victim: str) -> None:
    expected = undisturbed(jobs, 48, "")
    job = exact(fresh(jobs, "killed"), 48, "", "auto")
    job.until_step(9)
    job.launched.signal(victim, signal.SIGSTOP)
    time.sleep(2.0)
    job.launched.signal(victim, signal.SIGCONT)
    job.hurry()
    check_bits(jobs, job, expected)
    assert "started again" not in job.launcher.err, job


def test_nothing_outlives_a_killed_launcher(jobs: Jobs) -> None:
    job = exact(jobs, 100_000, "", "auto")
    job.until_step(3)
    job.kill(SERVERS[1])
    job.until_back(SERVERS[1])
    job.until_step(job.step() + 2)
    pids = [job.pids(task)[-1] for task in TASKS]
    job.launcher.kill()
    deadline = time.monotonic() + 2.0
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
