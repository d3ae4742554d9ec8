"""Stopped and resumed, in real processes: the same bits as a run that was never stopped."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from jobs import Jobs, RunningTask, jobs

from argosy.checkpoint import folder

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

# Everything that a resumed run must find again: dropout, noise, batch statistics, a scheduler, shuffled data.
TRAIN = """
import hashlib, sys, time, torch, argosy
from torch import nn
from torch.utils.data import TensorDataset

replica = argosy.join()
directory, last_step, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
replica.seed(3)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 3))
optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=1e-2))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 40, 0.5)
numbers = torch.Generator().manual_seed(1)
dataset = TensorDataset(torch.randn(500, 8, generator=numbers), torch.arange(500) % 3)
loader = replica.loader(dataset, 16, seed=5)
saving = {"directory": directory, "save_every": 30, "state": {"scheduler": scheduler}}
with replica.session(model, optimizer, last_step=last_step, average=0.9, **saving) as session:
    print("begun", flush=True)
    for x, y in session.batches(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x + 0.01 * torch.randn_like(x)), y).backward()
        optimizer.step()
        scheduler.step()
        if session.global_step % 15 == 0:
            print("step", session.global_step, flush=True)
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))  # Python heeds a signal that comes right before a sleep only after it
values = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
print("done", session.global_step, hashlib.sha256(values).hexdigest(), flush=True)
"""


def run(jobs: Jobs, mode: str, name: str, directory: Path, last_step: int, pause: float = 0.0) -> RunningTask:
    options = ["--ps", 2 if mode == "sync" else 0, "--workers", 3, "--mode", mode]
    command = ["-m", "argosy.cli", "run", *options, jobs.script(TRAIN), directory, last_step, pause]
    return jobs.start(name, command)


def digest(task: RunningTask, last_step: int) -> str:
    assert task.wait() == 0, task
    found = re.findall(rf"done {last_step} (\w+)$", task.out, re.MULTILINE)
    assert len(found) == 3, task
    assert len(set(found)) == 1, task
    return str(found[0])


def newest(directory: Path) -> int:
    return folder.saved(directory)[-1].step


@pytest.mark.parametrize(
    ("mode", "stops"),
    [
        pytest.param("sync", ((signal.SIGTERM, 120),), marks=pytest.mark.faults),
        pytest.param("sync", ((signal.SIGTERM, 120), (signal.SIGINT, 165)), marks=pytest.mark.slow),
        pytest.param("ring", ((signal.SIGTERM, 120),), marks=pytest.mark.slow),
    ],
    ids=["sync", "sync-twice", "ring"],
)
def test_the_same_bits_as_without_a_stop(
    jobs: Jobs, tmp_path: Path, mode: str, stops: tuple[tuple[signal.Signals, int], ...]
) -> None:
    whole = digest(run(jobs, mode, "whole", tmp_path / "whole", 200), 200)
    parts = tmp_path / "parts"
    assert digest(run(jobs, mode, "first", parts, 100), 100) != whole
    # Then stopped by signals, wherever it is, and resumed.
    for number, step in stops:
        stopped = run(jobs, mode, number.name, parts, 200, pause=0.04)
        stopped.until(f"step {step}")
        stopped.process.send_signal(number)
        assert stopped.wait() == 128 + number, stopped
        assert step <= newest(parts) < 200, stopped
    begin = newest(parts)
    last = run(jobs, mode, "last", parts, 200)
    assert digest(last, 200) == whole
    assert f"goes on from step {begin}" in last.err


def test_alone_a_signal_saves_and_a_second_one_ends_at_once(jobs: Jobs, tmp_path: Path) -> None:
    script = jobs.script(TRAIN)
    task = jobs.start("alone", [script, tmp_path / "runs", 1000, 0.01])
    task.until("step 45")
    task.process.send_signal(signal.SIGTERM)
    assert task.wait() == 143, task
    saved = newest(tmp_path / "runs")
    assert 45 <= saved < 1000
    again = jobs.start("again", [script, tmp_path / "runs", 1000, 1000.0])  # a step that takes for ever
    again.until(f"goes on from step {saved}")
    again.until("begun")  # from here on a signal is the session's business
    again.process.send_signal(signal.SIGINT)
    again.until("press Ctrl-C again to stop at once")
    again.process.send_signal(signal.SIGINT)
    assert again.wait() == -signal.SIGINT, again


@pytest.mark.parametrize("mode", ["alone", pytest.param("sync", marks=pytest.mark.faults), "ring"])
def test_who_presses_ctrl_c_hears_what_was_saved(jobs: Jobs, tmp_path: Path, mode: str) -> None:
    runs = tmp_path / "runs"
    if mode == "alone":
        task = jobs.start("alone", [jobs.script(TRAIN), runs, 100_000, 0.005])
    else:
        task = run(jobs, mode, "launcher", runs, 100_000, 0.005)
    task.until("argosy: saved step")  # after which saves are not told of for a while
    task.until("step 90")
    task.process.send_signal(signal.SIGINT)
    assert task.wait() == 130, str(task)
    told = [int(step) for step in re.findall(r"argosy: saved step (\d+) in", task.err)]
    assert told[-1] == newest(runs) >= 90, str(task)
    assert "press Ctrl-C again to stop at once" in task.err, str(task)
    assert "trains without end" not in task.err


def test_an_evaluator_follows_and_leaves(jobs: Jobs, tmp_path: Path) -> None:
    text = TRAIN.replace("average=0.9", "evaluate=lambda m: {'norm': m[0].weight.norm()}")
    command = [
        "run",
        "--ps",
        1,
        "--workers",
        1,
        "--evaluator",
        jobs.script(text),
        tmp_path / "runs",
        61,
        0.02,
    ]
    task = jobs.start("launcher", ["-m", "argosy.cli", *command])
    assert task.wait() == 0, task
    found = re.findall(r"evaluated step (\d+): \{\"norm\": \d+\.\d+\}", task.err)
    assert found[-1] == "61", task
    assert (tmp_path / "runs" / "step-61.evaluation.json").exists()
