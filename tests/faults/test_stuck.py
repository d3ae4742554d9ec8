"""Why is it stuck? `argosy status --stacks` and SIGUSR1 tell, without the help of the script that hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from jobs import Jobs, jobs

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

TRAIN = """
import os, threading, torch, argosy
replica = argosy.join()
model = torch.nn.Linear(2, 2)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))

def a_hang_of_my_own():
    print("hangs", flush=True)
    threading.Event().wait()

with replica.session(model, optimizer) as session:
    for batch in session.batches(range(10**9)):
        if replica.index == int(os.environ["HANGS"]) and batch == 3:
            a_hang_of_my_own()
        model.weight.grad = torch.ones(2, 2)
        optimizer.step()
"""


@pytest.mark.parametrize("worker", [1, pytest.param(0, marks=pytest.mark.faults)])
def test_a_job_that_is_stuck_says_where(jobs: Jobs, worker: int) -> None:
    cluster = jobs.cluster(2, 2)
    cluster.start_all([jobs.script(TRAIN), "--mode=sync"], HANGS=str(worker))
    cluster[f"worker{worker}"].until("hangs")
    command = [sys.executable, "-m", "argosy.cli", "status", cluster.addresses["ps"][0], "--stacks"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "in a_hang_of_my_own" in said, said
    assert "s ago: Apply(step=3" in said, said
    for name, task in cluster.tasks.items():
        task.process.send_signal(signal.SIGUSR1)
        task.until("most recent call first")
        if name not in ("ps1", f"worker{worker}"):
            task.until("global step 3")
        if name == f"worker{worker}":
            assert "in a_hang_of_my_own" in task.err, task
        assert task.process.poll() is None, task


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.faults)])
def test_a_job_without_progress_ends_and_says_where_it_is_stuck(jobs: Jobs, mode: str) -> None:
    """In an asynchronous job nobody waits for one who hangs: it is stuck when all are."""
    hangs = "1" if mode == "sync" else "0 1"
    text = TRAIN.replace(
        'replica.index == int(os.environ["HANGS"])', 'str(replica.index) in os.environ["HANGS"]'
    )
    words = ["run", "--ps", 2, "--workers", 2, "--mode", mode, "--stall-after", 3, "--log-dir", "logs"]
    launcher = jobs.start("launcher", ["-m", "argosy.cli", *words, jobs.script(text)], HANGS=hangs)
    for worker in hangs.split():
        launcher.until(f"[/job:worker/task:{worker}] hangs")
    began = time.monotonic()
    assert launcher.wait() == 1, launcher
    assert 3 <= time.monotonic() - began < 20, launcher
    said = launcher.err
    assert "global step " in said, launcher
    assert "s ago: Apply(step=" in said, launcher
    for worker in hangs.split():
        assert f"/job:worker/task:{worker} at " in said.rpartition(" s at step ")[2], launcher
    assert said.count("in a_hang_of_my_own") == len(hangs.split()), launcher
    assert "waiting for /job:worker/task:" in said.splitlines()[-1], launcher


def test_a_handler_of_the_script_stays(jobs: Jobs) -> None:
    """Schedulers send SIGUSR1 before they end a job: a script may be made for that."""
    text = "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('mine', flush=True))\n"
    cluster = jobs.cluster(1, 1)
    cluster.start_all([jobs.script(text + TRAIN), "--mode=sync"], HANGS="0")
    cluster["worker0"].until("hangs")
    cluster["worker0"].process.send_signal(signal.SIGUSR1)
    cluster["worker0"].until("mine")
    assert "most recent call first" not in cluster["worker0"].err
