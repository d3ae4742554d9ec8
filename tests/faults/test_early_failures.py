"""A task that fails before it has joined: nobody hears it, so the launcher tells those who wait for it."""

from __future__ import annotations

import re

import pytest
from jobs import Jobs, jobs

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

TRAIN = """
import os, torch
me = os.environ["ARGOSY_JOB_NAME"] + os.environ["ARGOSY_TASK_INDEX"]
if me == os.environ["FAILS"]:
    raise ValueError("no such data")
import argosy
replica = argosy.join()
model = torch.nn.Linear(2, 2)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
with replica.session(model, optimizer, evaluate=lambda model: None, directory=os.environ["RUNS"]) as session:
    for _ in session.batches(range(10**9)):
        model.weight.grad = torch.ones(2, 2)
        optimizer.step()
"""
FLAGS = {
    "sync": ["--ps", 2, "--workers", 2, "--mode", "sync"],
    "async": ["--ps", 2, "--workers", 2],
    "ring": ["--workers", 3, "--mode", "ring"],
    "evaluator": ["--workers", 1, "--evaluator"],
}


MORE = pytest.mark.faults


@pytest.mark.parametrize(
    ("way", "fails", "others"),
    [
        ("sync", "worker1", ["ps/task:0", "ps/task:1", "worker/task:0"]),
        pytest.param(
            "sync", "ps0", ["ps/task:1", "worker/task:0", "worker/task:1"], marks=pytest.mark.faults
        ),
        pytest.param(
            "async", "ps1", ["ps/task:0", "worker/task:0", "worker/task:1"], marks=pytest.mark.faults
        ),
        pytest.param("ring", "worker0", ["worker/task:1", "worker/task:2"], marks=MORE),
        ("ring", "worker2", ["worker/task:0", "worker/task:1"]),
        pytest.param("evaluator", "worker0", ["ps/task:0", "evaluator/task:0"], marks=MORE),
    ],
)
def test_those_who_wait_are_told_and_end_by_themselves(
    jobs: Jobs, way: str, fails: str, others: list[str]
) -> None:
    runs = jobs.folder / "runs"
    words = ["-m", "argosy.cli", "run", "--log-dir", jobs.folder / "logs", *FLAGS[way], jobs.script(TRAIN)]
    task = jobs.start("launcher", words, FAILS=fails, RUNS=str(runs))
    assert task.wait() == 1, str(task)
    name = f"/job:{fails[:-1]}/task:{fails[-1]}"
    for other in others:
        says = rf"\[/job:{other}\] argosy: error: the job was ended by {name}( at \S+)?: "
        assert re.search(f"{says}it failed with exit code 1", task.err), str(task)
    assert "still running" not in task.err, str(task)
    assert f"{name} failed with exit code 1" in task.err, str(task)
    assert task.err.rstrip().splitlines()[-1] == "ValueError: no such data", str(task)
