"""Tasks that die, or never come, or fail: who goes on, who ends, and what everybody says."""

from __future__ import annotations

import re
import signal

import pytest
from jobs import Jobs, jobs

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_a_killed_worker_takes_nobody_with_it(jobs: Jobs, mode: str) -> None:
    job = jobs.launch(mode, 300, 0.01)
    for worker in (0, 1):
        job.until(f"/job:worker/task:{worker}", "step ")
    job.kill("/job:worker/task:1")
    gone = f"/job:worker/task:1 at {job.address('/job:worker/task:1')} is gone; the job goes on without it"
    job.until("/job:ps/task:0", f"argosy: {gone}\n")
    job.hurry()
    assert job.wait() == 128 + 9, job
    assert job.lines("/job:worker/task:0")[-1].startswith("done 300 "), job
    assert "failed with exit code" not in job.launcher.err, job  # the servers' is 0, and worker 0's


def test_servers_whose_last_worker_is_lost_have_failed(jobs: Jobs) -> None:
    cluster = jobs.cluster(2, 1)
    cluster.start_all([jobs.script(), 100_000, 0.01])
    cluster["worker0"].until("step ")
    cluster["worker0"].kill()
    assert cluster.wait() == {"ps0": 1, "ps1": 1, "worker0": -9}, cluster
    for server in ("ps0", "ps1"):
        assert re.fullmatch(
            r"argosy: error: the job was ended by /job:worker/task:0: its connection ended at step \d+ of "
            r"100000, and no worker is left to go on; start the job again: .*",
            cluster[server].err.splitlines()[-1],
        ), cluster


@pytest.mark.parametrize("server", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_server_that_stands_still_is_named(jobs: Jobs, server: int) -> None:
    """By the workers and by the other server; when it goes on, so does the job."""
    job = jobs.launch("sync", 200, 0.02)
    stopped = f"/job:ps/task:{server}"
    for worker in (0, 1):
        job.until(f"/job:worker/task:{worker}", "step ")
    job.signal(stopped, signal.SIGSTOP)
    line = f"argosy: still waiting for {stopped} at {job.address(stopped)}, "
    for task in ("/job:worker/task:0", "/job:worker/task:1", f"/job:ps/task:{1 - server}"):
        job.until(task, line)
    job.signal(stopped, signal.SIGCONT)
    job.hurry()
    assert job.wait() == 0, job


@pytest.mark.parametrize(("server", "mode"), [(0, "sync"), pytest.param(1, "async", marks=pytest.mark.slow)])
def test_a_killed_server_is_named(jobs: Jobs, server: int, mode: str) -> None:
    job = jobs.launch(mode, 100_000, 0.01)
    for worker in (0, 1):
        job.until(f"/job:worker/task:{worker}", "step ")
    victim = f"/job:ps/task:{server}"
    job.kill(victim)
    assert job.wait() == 128 + 9, job
    named = f"{victim} at {job.address(victim)}"
    for worker in (0, 1):
        errors = [line for line in job.lines(f"/job:worker/task:{worker}") if "argosy: error: " in line]
        assert len(errors) == 1, job
        assert named in errors[0], job
    assert job.launcher.err.rstrip().splitlines()[-1].startswith(f"{victim} was killed by SIGKILL"), job


def test_whoever_waits_says_for_whom_and_gives_up(jobs: Jobs) -> None:
    """Three jobs at once: a server without workers, a worker without servers, one server of two."""
    script = jobs.script("import argosy\nargosy.join()\n")
    lonely = jobs.cluster(1, 2).start("ps", 0, [script], ARGOSY_WAIT="6")
    early = jobs.cluster(1, 1)
    worker = early.start("worker", 0, [script], ARGOSY_WAIT="6")
    pair = jobs.cluster(2, 1)
    second = pair.start("ps", 1, [script, "--wait=2"])
    assert [task.wait() for task in (lonely, worker, second)] == [1, 1, 1], (lonely, worker, second)
    for index in (0, 1):
        assert re.search(rf"still waiting for /job:worker/task:{index} at localhost:\d+, 5 s\n", lonely.err)
        assert f"/job:worker/task:{index} at localhost" in lonely.err.splitlines()[-1]
    assert "/job:ps/task:0 gave up waiting after 6 s; missing /job:worker/task:0" in lonely.err
    address = early.addresses["ps"][0]
    assert f"still waiting for /job:ps/task:0 at {address}, 5 s\n" in worker.err, worker
    assert (
        f"error: /job:worker/task:0 gave up waiting after 6 s; missing /job:ps/task:0 at {address}"
        in (worker.err.splitlines()[-1])
    )
    assert "/job:ps/task:1 gave up waiting after 2 s; missing /job:ps/task:0" in second.err.splitlines()[-1]


def test_a_worker_that_raises_under_the_launcher(jobs: Jobs) -> None:
    """Its traceback is the last thing on the screen, the others end, the exit code is not 0."""
    job = jobs.launch("sync", 1000, 0, FAIL_AT="20")
    assert job.wait() == 1
    lines = job.launcher.err.rstrip("\n").split("\n")
    assert lines[-1] == "ValueError: boom", job
    assert any(line.startswith("/job:worker/task:1 failed with exit code 1") for line in lines), job
    assert "Traceback (most recent call last):" in lines, job
    assert "argosy: error: the job was ended by /job:worker/task:1: ValueError: boom" in (
        job.lines("/job:worker/task:0")
    ), job
    assert "done" not in job.launcher.out
