"""Tasks that die, or never come, or fail: who goes on, who ends, and what everybody says."""

from __future__ import annotations

import re

import pytest
from jobs import Jobs, jobs

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_killed_worker_takes_nobody_with_it(jobs: Jobs, mode: str) -> None:
    cluster = jobs.cluster(2, 2)
    cluster.start_all([jobs.script(), 400, 0.01, "--mode", mode])
    for name in ("worker0", "worker1"):
        cluster[name].until("step ")
    cluster["worker1"].kill()
    assert cluster.wait() == {"ps0": 0, "ps1": 0, "worker0": 0, "worker1": -9}, cluster
    assert "done 400 " in cluster["worker0"].out, cluster
    gone = f"/job:worker/task:1 at {cluster.addresses['worker'][1]} is gone; the job goes on without it"
    assert gone in cluster["ps0"].err, cluster


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("server", [0, 1])
def test_a_killed_server_is_named(jobs: Jobs, server: int, mode: str) -> None:
    cluster = jobs.cluster(2, 1)
    cluster.start_all([jobs.script(), 100_000, 0.01, "--mode", mode])
    cluster["worker0"].until("step 3\n")
    cluster[f"ps{server}"].kill()
    codes = cluster.wait()
    assert codes[f"ps{server}"] == -9
    assert codes[f"ps{1 - server}"] == 1, cluster
    assert codes["worker0"] == 1, cluster
    last = cluster["worker0"].err.splitlines()[-1]
    assert re.match(r"argosy: error: .*", last), cluster
    assert f"/job:ps/task:{server} at {cluster.addresses['ps'][server]}" in last, cluster


def test_whoever_waits_says_for_whom_and_gives_up(jobs: Jobs) -> None:
    """Three jobs at once: a server without workers, a worker without servers, one server of two."""
    script = jobs.script()
    lonely = jobs.cluster(1, 2).start("ps", 0, [script, 1, 0], ARGOSY_WAIT="6")
    early = jobs.cluster(1, 1)
    worker = early.start("worker", 0, [script, 1, 0], ARGOSY_WAIT="6")
    pair = jobs.cluster(2, 1)
    second = pair.start("ps", 1, [script, 1, 0, "--wait=2"])
    assert [task.wait() for task in (lonely, worker, second)] == [1, 1, 1], (lonely, worker, second)
    for index in (0, 1):
        assert re.search(rf"still waiting for /job:worker/task:{index} at localhost:\d+, 5 s\n", lonely.err)
        assert f"/job:worker/task:{index} at localhost" in lonely.err.splitlines()[-1]
    assert "/job:ps/task:0 gave up waiting after 6 s; missing /job:worker/task:0" in lonely.err
    address = early.addresses["ps"][0]
    assert f"still waiting for /job:ps/task:0 at {address}, 5 s\n" in worker.err, worker
    assert f"error: /job:worker/task:0 gave up waiting after 6 s; missing /job:ps/task:0 at {address}" in (
        worker.err.splitlines()[-1]
    )
    assert "/job:ps/task:1 gave up waiting after 2 s; missing /job:ps/task:0" in second.err.splitlines()[-1]


def test_a_worker_that_raises_under_the_launcher(jobs: Jobs) -> None:
    """Its traceback is the last thing on the screen, the others end, the exit code is not 0."""
    command = ["-m", "argosy.cli", "run", "--ps", 2, "--workers", 2, "--mode", "sync", jobs.script(), 1000, 0]
    launcher = jobs.start("launcher", command, FAIL_AT="20")
    assert launcher.wait() == 1
    lines = launcher.err.rstrip("\n").split("\n")
    assert lines[-1] == "ValueError: boom", launcher
    assert any(line.startswith("/job:worker/task:1 failed with exit code 1") for line in lines), launcher
    assert "Traceback (most recent call last):" in lines, launcher
    assert "the job was ended by /job:worker/task:1: ValueError: boom" in launcher.err
    assert "done" not in launcher.out
