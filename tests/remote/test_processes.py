"""Real processes: the example, tasks that die, work that is done where it is said to be done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from clusters import ONE_THREAD, processes

import argosy
from argosy.errors import TaskLost, WaitTimeout

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]
EXAMPLES = Path(__file__).parents[2] / "examples"
FIRST, SECOND = "/job:worker/task:0", "/job:worker/task:1"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "argosy.cli", "run", *words],
        capture_output=True,
        text=True,
        timeout=100,
        env=dict(os.environ) | ONE_THREAD,
    )


def test_the_example_of_placement() -> None:
    done = run("--serve", "--ps", "1", "--workers", "2", str(EXAMPLES / "placement.py"))
    assert done.returncode == 0, done.stderr
    assert "tensor([[7., 7.]," in done.stdout
    assert "'/job:worker/task:1/cpu:0'" in done.stdout
    for line in (
        "Ones: /job:ps/task:0/cpu:0",
        "MatMul: /job:worker/task:0/cpu:0",
        "Add: /job:worker/task:1/cpu:0",
    ):
        assert line in done.stderr


def test_a_task_that_dies_is_named_and_the_rest_goes_on() -> None:
    with processes(worker=2) as tasks, argosy.connect(tasks.target, wait=60) as client:
        with argosy.device(FIRST):
            x = torch.ones(4)
        with argosy.device(SECOND):
            y = x + 1
        assert y.sum().item() == 8
        assert client.ran(SECOND) == {"aten::add.Tensor": 1, "aten::sum": 1}
        tasks.tasks[SECOND].send_signal(signal.SIGSTOP)  # so that it dies in the middle of what follows
        with argosy.device(SECOND):
            z = y * 2
        with argosy.device(FIRST):
            w = z + x
        client.flush()
        tasks.kill(SECOND)
        with pytest.raises(TaskLost, match=SECOND):
            w.cpu()
        with pytest.raises(TaskLost, match=SECOND):
            y.cpu()
        assert (x * 3).sum().item() == 12


def test_who_is_not_there_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WaitTimeout, match=r"127\.0\.0\.1:9"):
        argosy.connect("127.0.0.1:9", wait=0.3)


@pytest.mark.slow
def test_in_graph_training_both_ways() -> None:
    done = run("--serve", "--ps", "1", "--workers", "2", str(EXAMPLES / "in_graph.py"), "--steps", "30")
    assert done.returncode == 0, done.stderr
    assert "After 30 training step(s)" in done.stdout
    done = run(
        "--serve",
        "--ps",
        "1",
        "--workers",
        "2",
        str(EXAMPLES / "in_graph.py"),
        "--steps",
        "30",
        "--asynchronous",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_model_parallel_training() -> None:
    done = run(
        "--serve",
        "--ps",
        "0",
        "--workers",
        "2",
        str(EXAMPLES / "model_parallel.py"),
        "--steps",
        "6",
        "--width",
        "64",
    )
    assert done.returncode == 0, done.stderr
    assert "both tasks" in done.stdout
