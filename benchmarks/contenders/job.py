"""What every contender is told, and how it reports: a timestamp a step, written once its time is up."""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.networks import NETWORKS, Network

_PR_SET_PDEATHSIG = 1
_LOOK_EVERY = 0.05


@dataclass(frozen=True)
class Job:
    """What to train, for how long, and where to write. `role` and the rest matter to some contenders only."""

    network: Network
    data: Path
    out: Path
    seconds: float
    mode: str
    role: str
    index: int
    count: int
    ports: tuple[int, ...]


def read_job() -> Job:
    """From the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=list(NETWORKS), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    # Words that argosy.join() would take for its own are avoided: --job_name, --mode, --task_index.
    parser.add_argument("--way", default="async")
    parser.add_argument("--role", default="worker")
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--count", type=int, default=1, help="workers in all")
    parser.add_argument("--ports", default="")
    args = parser.parse_args()
    ports = tuple(int(port) for port in args.ports.split(",") if port)
    network = NETWORKS[args.network]
    return Job(network, args.data, args.out, args.seconds, args.way, args.role, args.index, args.count, ports)


class Recorder:
    """One worker's timestamps, and when they are enough: `seconds` after every worker has made a step.

    Workers may start far apart; each leaves a file at its first step, so that all know when all run. The file
    of the timestamps appears whole.
    """

    def __init__(self, job: Job, index: int, workers: int, versions: dict[str, str]) -> None:
        self._path = job.out / f"worker-{index}.json"
        self._first = job.out / f"first-{index}"
        self._others = [job.out / f"first-{other}" for other in range(workers)]
        self._seconds = job.seconds
        self._versions = versions
        self._stamps: list[float] = []
        self._deadline = math.inf
        self._look_again = 0.0
        self.over = False

    def step(self) -> bool:
        """A step was made: False once the time is up."""
        if self.over:
            return False
        now = time.monotonic()
        self._stamps.append(now)
        if self._deadline == math.inf and now >= self._look_again:
            self._look(now)
        if now < self._deadline:
            return True
        self.over = True
        write_whole(self._path, {"stamps": self._stamps, "versions": self._versions})
        return False

    def _look(self, now: float) -> None:
        self._first.touch()
        self._look_again = now + _LOOK_EVERY
        if all(first.exists() for first in self._others):
            self._deadline = now + self._seconds


def end_with_parent() -> None:
    """Be killed when the harness is, which could then not end us any more."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def milliseconds(step: Callable[[], object], first: int, seconds: float) -> float:
    """How long a step takes, over so many seconds, after the `first` ones."""
    for _ in range(first):
        step()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() < begin + seconds:
        step()
        count += 1
    return (time.perf_counter() - begin) / count * 1000


def write_whole(path: Path, content: object) -> None:
    """Write JSON so that whoever sees the file sees all of it."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content), encoding="utf-8")
    part.rename(path)
