"""Jobs under the launcher whose tasks are killed and started again; what is killed when depends on the steps
that the job has made, never on the clock.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from jobs import Jobs, Launched, RunningTask

WORKERS = 3
SERVERS = ("/job:ps/task:0", "/job:ps/task:1")
TASKS = (*SERVERS, *(f"/job:worker/task:{index}" for index in range(WORKERS)))

# What a task has to lose: moments, random numbers, a place in shuffled data, running statistics.
EXACT = """
import hashlib, os, time
import torch
from torch import nn
import argosy

replica = argosy.join()
steps, kind = int(os.environ["STEPS"]), os.environ.get("KIND", "")
print("joined", flush=True)
replica.seed(7)
generator = torch.Generator().manual_seed(1)
inputs = torch.randn(96, 12, generator=generator)
data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long())
norm = [nn.BatchNorm1d(32)] if kind == "norm" else []
model = nn.Sequential(nn.Linear(12, 32), *norm, nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2))
clip_norm = 0.05 if kind == "clip" else None
optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=0.01), clip_norm=clip_norm)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
options = {
    "directory": {"directory": "saved", "save_every": 7},
    "norm": {"buffers": "mean"},
    "average": {"average": 0.9},
}.get(kind, {})
loader = replica.loader(data, batch_size=8, seed=3)
print("session", flush=True)
with replica.session(model, optimizer, last_step=steps, state={"schedule": schedule}, **options) as session:
    for x, y in session.batches(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        print(f"push {session.global_step}", flush=True)
        optimizer.step()
        schedule.step()
        print(f"step {session.global_step}", flush=True)
        if not os.path.exists("hurry"):
            time.sleep(0.02)
    if kind == "average":
        with session.averaged():
            print("average", float(sum(p.double().sum() for p in model.parameters())), flush=True)
digest = hashlib.sha256()
for value in model.state_dict().values():
    digest.update(value.contiguous().numpy().tobytes())
print(f"done {session.global_step} {digest.hexdigest()}", flush=True)
"""

# Every update takes 1 off every parameter, so that a parameter is the number of its updates.
COUNT = """
import os, time
import torch
import argosy

replica = argosy.join()
model = torch.nn.ParameterList([torch.zeros(400_000), torch.zeros(10), torch.zeros(300_000)])
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
counts = {"mine": 0}


class Mine:
    def state_dict(self):
        return dict(counts)

    def load_state_dict(self, state):
        counts.update(state)


with replica.session(model, optimizer, last_step=int(os.environ["STEPS"]), state={"mine": Mine()}) as session:
    for _ in session.batches(range(10**9)):
        for parameter in model:
            parameter.grad = torch.ones_like(parameter)
        verdict = optimizer.step()
        counts["mine"] += verdict.status == "applied"
        print(f"step {verdict.global_step}", flush=True)
        if not os.path.exists("hurry"):
            time.sleep(0.01)
values = torch.cat([parameter.detach() for parameter in model])
print(f"done {session.global_step} {-values.max().item():.0f} {-values.min().item():.0f}", flush=True)
"""


class RestartedJob:
    """2 servers and 3 workers; any of them may be killed."""

    def __init__(
        self, jobs: Jobs, script: str, words: Sequence[object], restarts: int = 20, **environ: str
    ) -> None:
        self.folder = jobs.folder
        path = jobs.script(script)
        command = ["-m", "argosy.cli", "run", "--ps", 2, "--workers", WORKERS, "--max-restarts", restarts]
        logs = ["--log-dir", jobs.folder / "logs"]
        started = jobs.start("launcher", [*command, *logs, *words, path], **environ)
        self.launched = Launched(started)
        self.launcher: RunningTask = started
        self._lives = dict.fromkeys(TASKS, 0)

    # --- what has happened --------------------------------------------------------------------------------
    def step(self) -> int:
        """The highest step that a worker has told of."""
        found: Iterator[re.Match[str]] = re.finditer(r"^\[\S+\] step (\d+)$", self.launcher.out, re.MULTILINE)
        return max((int(each[1]) for each in found), default=0)

    def until_step(self, step: int, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while self.step() < step:
            assert self.launcher.process.poll() is None, f"it ended before step {step}:\n{self}"
            assert time.monotonic() < deadline, f"it does not come to step {step}:\n{self}"
            time.sleep(0.005)

    def until_all_push(self) -> None:
        """Every worker has come to its push of the step that follows, or is about to, and nobody goes on."""
        while True:
            now = self.step()
            for worker in range(WORKERS):
                self.launcher.until(f"[/job:worker/task:{worker}] push {now}\n")
            if self.step() == now:
                return

    def pids(self, task: str) -> list[int]:
        """The processes of a task, the latest last."""
        return [int(pid) for pid in re.findall(rf"^started {task} pid (\d+) at", self.launcher.out, re.M)]

    def until_started(self, task: str, count: int, seconds: float = 60.0) -> int:
        """The process number `count` of a task, counted from 1."""
        deadline = time.monotonic() + seconds
        while len(self.pids(task)) < count:
            assert self.launcher.process.poll() is None, f"{task} is not started again:\n{self}"
            assert time.monotonic() < deadline, f"{task} is not started again:\n{self}"
            time.sleep(0.005)
        return self.pids(task)[count - 1]

    # --- faults -------------------------------------------------------------------------------------------
    def kill(self, *tasks: str) -> None:
        """All of these at once, each as soon as it runs."""
        found = [self.until_started(task, self._lives[task] + 1) for task in tasks]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for task in tasks:
            self._lives[task] += 1

    def kill_when(self, task: str, text: str, times: int) -> None:
        """As soon as a text has been said so often."""
        deadline = time.monotonic() + 60.0
        while (self.launcher.out + self.launcher.err).count(text) < times:
            assert time.monotonic() < deadline, f"{text!r} is not said:\n{self}"
            time.sleep(0.001)
        self.kill(task)

    def until_back(self, *tasks: str) -> None:
        """The killed ones have been started again."""
        for task in tasks:
            self.until_started(task, self._lives[task] + 1)

    def kill_at_random(self, seed: int, kills: int, gap: int = 6, tasks: Sequence[str] = TASKS) -> None:
        """Whoever it is, a few steps after the one before has come back; then the job is to hurry."""
        chance = random.Random(seed)
        for _ in range(kills):
            self.until_step(self.step() + chance.randint(1, gap))
            time.sleep(chance.random() * 0.02)  # anywhere within a step
            victim = chance.choice(tasks)
            self.kill(victim)
            self.until_back(victim)
        self.hurry()

    def hurry(self) -> None:
        self.launched.hurry()

    # --- the end ------------------------------------------------------------------------------------------
    def ends(self) -> list[str]:
        """What every worker has in the end, after a job that ended well."""
        assert self.launcher.wait(90.0) == 0, str(self)
        said = re.findall(r"^\[/job:worker/task:(\d)\] (done .*|average .*)$", self.launcher.out, re.M)
        assert {worker for worker, _ in said} == set("012"), str(self)
        return [text for _, text in said]

    def result(self) -> set[str]:
        """What all workers have: `done`, and what comes before it."""
        return set(self.ends())

    def __str__(self) -> str:
        return str(self.launcher)


def fresh(jobs: Jobs, name: str) -> Jobs:
    """Another folder, whose processes end with the others."""
    folder = jobs.folder / name
    folder.mkdir()
    made = Jobs(Path(folder))
    made.started = jobs.started
    return made
