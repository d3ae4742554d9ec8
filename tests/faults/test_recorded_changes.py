"""events.jsonl tells who was lost and who came back, each once, whoever it was that died."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import Jobs, Launched, jobs

from argosy.observe.journal import read

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

TRAIN = """
import os, time, torch, argosy
replica = argosy.join()
model = torch.nn.Linear(2, 2)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
with replica.session(model, optimizer, directory="run") as session:
    for _ in session.batches(range(10**9)):
        model.weight.grad = torch.ones(2, 2)
        optimizer.step()
        if os.path.exists("enough"):
            session.stop()
        time.sleep(0.02)
"""
# A worker, a server, the coordinator, and the one who writes the journal.
KILLED = ("/job:worker/task:1", "/job:ps/task:1", "/job:ps/task:0", "/job:worker/task:0")


def changes(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    try:
        return [event for event in read(folder / "run") if event["event"] in kinds]
    except FileNotFoundError:
        return []


def until_recorded(launched: Launched, folder: Path, kind: str, task: str) -> None:
    deadline = time.monotonic() + 40
    while not any(event["task"] == task for event in changes(folder, kind)):
        assert time.monotonic() < deadline, f"{launched}\n{changes(folder, 'lost', 'restarted')}"
        assert launched.launcher.process.poll() is None, launched
        time.sleep(0.05)


def test_each_death_and_each_return_is_recorded_once(jobs: Jobs) -> None:
    words = ["run", "--ps", 2, "--workers", 2, "--mode", "sync", jobs.script(TRAIN)]
    launched = Launched(jobs.start("launcher", ["-m", "argosy.cli", *words]))
    began = time.time()
    for task in KILLED:
        until_recorded(launched, jobs.folder, "joined", "/job:worker/task:1")
        launched.kill(task)
        until_recorded(launched, jobs.folder, "restarted", task)
    command = [sys.executable, "-m", "argosy.cli", "status", launched.address("/job:ps/task:0")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    for task in KILLED:
        assert f"{task} was lost at step " in said, said
    assert said.count("; back at step ") == len(KILLED), said
    jobs.folder.joinpath("enough").touch()
    assert launched.wait() == 0, launched
    found = changes(jobs.folder, "lost", "restarted")
    expected = [(kind, task) for task in KILLED for kind in ("lost", "restarted")]
    assert [(event["event"], event["task"]) for event in found] == expected, found
    every = changes(jobs.folder, "joined", "lost", "restarted", "left")
    assert [event["number"] for event in every] == list(range(1, len(every) + 1)), every
    steps, times = [event["step"] for event in found], [event["time"] for event in found]
    assert steps == sorted(steps), found
    assert times == sorted(times), found
    assert began - 60 < times[0] < times[-1] < time.time(), found
