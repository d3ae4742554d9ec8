"""The memory of each task of an Argosy job, and whether it grows. Read from outside, by the tasks' ids."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.catalogue import SCRIPTS, SERVERS, WORKERS, Training, argosy_run
from benchmarks.networks import NETWORKS
from benchmarks.running import Launch, Run, run
from benchmarks.settings import Settings

SAMPLES = 60
WIDE_SECONDS = 15.0
_STARTED = re.compile(r"started (?P<task>/job:\w+/task:\d+) pid (?P<pid>\d+)")
_IMPORT = """
import psutil, sys, torch
from pathlib import Path
from benchmarks.contenders.job import write_whole
info = psutil.Process().memory_full_info()
write_whole(Path(sys.argv[1]), {"rss": info.rss, "pss": info.pss})
"""


def task_ids(log: str) -> dict[str, int]:
    """The process of each task, as `argosy run` announces them."""
    return {match["task"]: int(match["pid"]) for match in _STARTED.finditer(log)}


def growth(samples: Sequence[float]) -> float:
    """The last quarter's median over that of the second one; the first allocates what training needs."""
    quarter = max(1, len(samples) // 4)
    return median(samples[-quarter:]) - median(samples[quarter : 2 * quarter] or samples[:1])


def allowed_for_server(floats: int, mode: str, imported: int) -> float:
    """What the project allows a server of Adam: parameters and two slots of the optimizer, an accumulator
    (synchronous), a gradient and a parameter slot for each local worker, the import of torch, and 10 %."""
    shares = 3 + (mode == "sync") + 2 * WORKERS
    return 1.1 * (imported + shares * 4 * floats / SERVERS)


class Sampler:
    """Looks at the tasks from time to time; reading the maps stops a process for a moment, so not often."""

    def __init__(self, log: Path, every: float) -> None:
        self._log = log
        self._every = every
        self._next = 0.0
        self.samples: dict[str, list[tuple[float, int, int]]] = {}

    def __call__(self, passed: float) -> None:
        if passed < self._next:
            return
        self._next = passed + self._every
        for task, pid in task_ids(self._log.read_text(encoding="utf-8", errors="replace")).items():
            try:
                info = psutil.Process(pid).memory_full_info()
            except psutil.Error:
                continue
            self.samples.setdefault(task, []).append((passed, info.rss, info.pss))


def _job(settings: Settings, network: str, mode: str, seconds: float) -> dict[str, Any]:
    out = settings.out()
    words = Training(network, settings.data, out, seconds).words
    # Forked, tasks would share most of what they have imported, and each would count it as its own.
    launch = argosy_run(SCRIPTS / "argosy_train.py", words, SERVERS, WORKERS, mode, "--no-fork-server")
    sampler = Sampler(out / "argosy.log", seconds / SAMPLES)
    expected = [f"worker-{index}.json" for index in range(WORKERS)]
    outcome = run(Run([launch], out, expected, seconds + settings.start_limit, watch=sampler))
    steps = sum(len(file["stamps"]) for file in outcome.files)
    # What a task held before training is of no interest, nor what it holds while it ends.
    begin = max(file["stamps"][0] for file in outcome.files) - outcome.started
    tasks = {}
    for task, samples in sampler.samples.items():
        trained = [sample for sample in samples if sample[0] > begin] or samples[-1:]
        tasks[task] = {
            "rss": trained[-1][1],
            "pss": trained[-1][2],
            "growth": growth([pss for _, _, pss in trained]),
            "samples": trained,
        }
        settings.say(f"memory, {network} {mode}: {task} {trained[-1][1] / 1e6:.0f} MB")
    return {"network": network, "mode": mode, "gradients": steps, "seconds": seconds, "tasks": tasks}


def _imported(settings: Settings) -> dict[str, int]:
    """The memory of a process that has imported torch and done nothing."""
    out = settings.out()
    launch = Launch("import", (sys.executable, "-c", _IMPORT, "import.json"))
    imported: dict[str, int] = run(Run([launch], out, ["import.json"], settings.start_limit)).files[0]
    return imported


def measure_memory(settings: Settings) -> dict[str, Any]:
    """The MNIST network for long, to see growth; the wide one for a while, to see what a parameter costs."""
    from benchmarks.contenders.torch_model import build

    imported = _imported(settings)
    jobs = []
    for network, mode, seconds in (
        ("mnist", "async", settings.memory_seconds),
        ("wide", "async", min(WIDE_SECONDS, settings.memory_seconds)),
        ("wide", "sync", min(WIDE_SECONDS, settings.memory_seconds)),
    ):
        job = _job(settings, network, mode, seconds)
        floats = sum(parameter.numel() for parameter in build(NETWORKS[network]).parameters())
        job["allowed"] = allowed_for_server(floats, mode, imported["rss"])
        jobs.append(job)
    return {"kind": "memory", "imported": imported, "jobs": jobs}
