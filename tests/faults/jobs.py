"""Jobs of real processes, each task started as a person would start it; none outlives its test."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "examples" / "mnist.py"
# The ports that the kernel gives to connections begin at 32768: below, nobody takes one by chance.
_PORTS = range(15000, 32000)

# A training whose result is known: every worker's gradient is its index + 1, so a synchronous step of SGD
# takes the mean off the weights.
TRAIN = """
import os, sys, time
import torch
import argosy

replica = argosy.join()
steps, pause = int(sys.argv[1]), float(sys.argv[2])
model = torch.nn.Linear(40, 30)
torch.nn.init.zeros_(model.weight)
torch.nn.init.zeros_(model.bias)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
with replica.session(model, optimizer, last_step=steps) as session:
    for _ in session.batches(range(10**6)):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, replica.index + 1.0)
        verdict = optimizer.step()
        print(f"step {verdict.global_step}", flush=True)
        if os.environ.get("FAIL_AT") == str(verdict.global_step) and replica.index == 1:
            raise ValueError("boom")
        if not os.path.exists("hurry"):
            time.sleep(pause)
values = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])
print(f"done {session.global_step} {values.min().item()} {values.max().item()}", flush=True)
"""


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens, all different."""
    with ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            taken = stack.enter_context(socket.socket())
            try:
                taken.bind(("127.0.0.1", random.SystemRandom().choice(_PORTS)))
            except OSError:
                continue
            found.append(taken.getsockname()[1])
    return found


class RunningTask:
    """One process. Its output goes to files: nobody has to read it for the process to go on."""

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.folder = folder
        self._out = folder / f"{name}.out"
        self._err = folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(command, env=environ, stdout=out, stderr=err, cwd=folder)

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def until(self, text: str, seconds: float = 75.0) -> None:
        """Wait until the task has printed this."""
        deadline = time.monotonic() + seconds
        while text not in self.out and text not in self.err:
            alive = self.process.poll() is None
            assert alive or text in self.out + self.err, f"{self.name} ended without {text!r}:\n{self}"
            assert time.monotonic() < deadline, f"{self.name} did not say {text!r}:\n{self}"
            time.sleep(0.01)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def wait(self, seconds: float = 60.0) -> int:
        """The exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} is still running:\n{self}") from None

    def __str__(self) -> str:
        return f"--- {self.name}, standard output\n{self.out}--- standard error\n{self.err}---"


class Jobs:
    """Starts tasks in a folder, and ends those that a failed test has left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[RunningTask] = []

    def start(self, name: str, command: Sequence[object], **environ: str) -> RunningTask:
        """`python COMMAND` with these variables, and none of the caller's about clusters."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("ARGOSY_", "TF_"))}
        words = [sys.executable, *map(str, command)]
        task = RunningTask(name, words, clean | {"OMP_NUM_THREADS": "1"} | environ, self.folder)
        self.started.append(task)
        return task

    def script(self, text: str = TRAIN) -> Path:
        path = self.folder / "train.py"
        path.write_text(text)
        return path

    def cluster(self, servers: int, workers: int) -> Cluster:
        return Cluster(self, servers, workers)

    def launch(
        self, mode: str, steps: int, pause: float, *, workers: int = 2, restarts: int = 0, **environ: str
    ) -> Launched:
        """`argosy run` of the training on 2 servers, or none in a ring; torch is imported once."""
        servers = 0 if mode == "ring" else 2
        words = [
            "run",
            "--ps",
            servers,
            "--workers",
            workers,
            "--mode",
            mode,
            "--max-restarts",
            restarts,
            "--log-dir",
            self.folder / "logs",
        ]
        command = ["-m", "argosy.cli", *words, self.script(), steps, pause]
        return Launched(self.start("launcher", command, **environ))

    def end(self) -> None:
        for task in self.started:
            if task.process.poll() is None:
                task.kill()
            task.process.wait()


class Cluster:
    """Addresses of a job, and its tasks, started one by one by hand."""

    def __init__(self, jobs: Jobs, servers: int, workers: int) -> None:
        self._jobs = jobs
        ports = free_ports(servers + workers)
        self.addresses = {
            "ps": [f"localhost:{port}" for port in ports[:servers]],
            "worker": [f"localhost:{port}" for port in ports[servers:]],
        }
        self.tasks: dict[str, RunningTask] = {}

    def start(self, job: str, index: int, command: Sequence[object], **environ: str) -> RunningTask:
        """`python COMMAND --job_name=... --task_index=... --ps_hosts=... --worker_hosts=...`"""
        flags = [
            f"--job_name={job}",
            f"--task_index={index}",
            f"--ps_hosts={','.join(self.addresses['ps'])}",
            f"--worker_hosts={','.join(self.addresses['worker'])}",
        ]
        name = f"{job}{index}"
        task = self.tasks[name] = self._jobs.start(name, [*command, *flags], **environ)
        return task

    def start_all(self, command: Sequence[object], order: Sequence[str] = (), **environ: str) -> None:
        """Every task, in this order: `ps0`, `worker1`, ..."""
        names = [f"{job}{index}" for job, hosts in self.addresses.items() for index in range(len(hosts))]
        for name in order or names:
            self.start(name[:-1], int(name[-1]), command, **environ)

    def port(self, server: int) -> int:
        return int(self.addresses["ps"][server].rpartition(":")[2])

    def wait(self, *names: str) -> dict[str, int]:
        """The exit codes of these tasks, or of all; if one does not end, what all have said."""
        try:
            return {name: self.tasks[name].wait() for name in names or self.tasks}
        except AssertionError as error:
            raise AssertionError(f"{error}\nthe whole cluster:\n{self}") from None

    def __getitem__(self, name: str) -> RunningTask:
        return self.tasks[name]

    def __str__(self) -> str:
        return "\n".join(map(str, self.tasks.values()))


class Launched:
    """A job under `argosy run`."""

    def __init__(self, launcher: RunningTask) -> None:
        self.launcher = launcher
        launcher.until("started /job:worker/task:0 pid")

    def until(self, task: str, text: str) -> None:
        self.launcher.until(f"[{task}] {text}")

    def hurry(self) -> None:
        """From now on no step pauses: what the job was to live through is over."""
        self.launcher.folder.joinpath("hurry").touch()

    def kill(self, task: str) -> None:
        self.signal(task, signal.SIGKILL)

    def signal(self, task: str, number: signal.Signals) -> None:
        os.kill(int(self._started(task)[1]), number)

    def address(self, task: str) -> str:
        return self._started(task)[2]

    def port(self, task: str) -> int:
        return int(self.address(task).rpartition(":")[2])

    def _started(self, task: str) -> re.Match[str]:
        """The line of its latest process: of a task that was started again, there are several."""
        found = list(re.finditer(rf"^started {task} pid (\d+) at (\S+)$", self.launcher.out, re.MULTILINE))
        assert found, self.launcher
        return found[-1]

    def lines(self, task: str) -> list[str]:
        """What a task has said, on both streams."""
        start = f"[{task}] "
        every = [*self.launcher.out.split("\n"), *self.launcher.err.split("\n")]
        return [line.removeprefix(start) for line in every if line.startswith(start)]

    def wait(self) -> int:
        return self.launcher.wait()

    def __str__(self) -> str:
        return str(self.launcher)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    made.end()
