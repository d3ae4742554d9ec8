"""Starts the processes of one run, waits for what its workers write, and ends every process by its id.

The harness adopts orphans (PR_SET_CHILD_SUBREAPER), so that also the daemons that a contender starts and
loses, as Ray's, are found among its descendants and ended.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
_PR_SET_CHILD_SUBREAPER = 36
# One thread a process: two processes that each use every core fight over them.
ENVIRON = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "GLOO_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),  # this tree, whatever is installed
    "PYTHONUNBUFFERED": "1",
}
_POLL = 0.1


class RunFailed(RuntimeError):
    """A run ended without a result; the message says how, and shows the end of its output."""


@dataclass(frozen=True)
class Launch:
    """One process to start."""

    name: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """Processes that belong together, and the files by which they say that they are done.

    `seconds`: the limit, start included. `grace`: how long they may take to end by themselves afterwards;
    0 for those that never do. `watch` is called with the seconds since the start, about ten times a second.
    """

    launches: Sequence[Launch]
    out: Path
    expected: Sequence[str]
    seconds: float
    grace: float = 10.0
    watch: Callable[[float], None] | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What the expected files held, in order, and when the first process was started."""

    started: float
    files: list[Any]


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def adopt_orphans() -> None:
    """Become the parent of what our children leave behind."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def run(plan: Run) -> Outcome:
    """Carry out a run. Raises RunFailed; leaves no process either way."""
    adopt_orphans()
    before = {child.pid for child in psutil.Process().children()}
    environ = {**os.environ, **ENVIRON, **plan.environ}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    started = time.monotonic()
    try:
        for launch in plan.launches:
            with (plan.out / f"{launch.name}.log").open("wb") as log:
                processes[launch.name] = subprocess.Popen(
                    launch.argv,
                    cwd=plan.out,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        files = _wait(plan, processes, started)
        _let_end(processes, plan.grace)
    finally:
        end_all(before)
        for process in processes.values():
            process.wait()
    return Outcome(started, files)


def _wait(plan: Run, processes: Mapping[str, subprocess.Popen[bytes]], started: float) -> list[Any]:
    paths = [plan.out / name for name in plan.expected]
    while not all(path.exists() for path in paths):
        passed = time.monotonic() - started
        failed = [name for name, process in processes.items() if process.poll() not in (None, 0)]
        over = all(process.poll() is not None for process in processes.values())
        if failed or (over and not all(path.exists() for path in paths)):
            name = failed[0] if failed else plan.launches[0].name
            code = processes[name].returncode
            raise RunFailed(f"{name} ended with {code} before it had written its result{_tail(plan, name)}")
        if passed > plan.seconds:
            tails = "".join(_tail(plan, launch.name) for launch in plan.launches)
            raise RunFailed(f"no result after {passed:.0f} s{tails}")
        if plan.watch is not None:
            plan.watch(passed)
        time.sleep(_POLL)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def _tail(plan: Run, name: str) -> str:
    lines = (plan.out / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    return "".join(f"\n  {name}: {line}" for line in lines[-15:])


def _let_end(processes: Mapping[str, subprocess.Popen[bytes]], grace: float) -> None:
    deadline = time.monotonic() + grace
    for process in processes.values():
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return


def end_all(before: set[int]) -> None:
    """End all descendants of this process, by their ids, but for the children named in `before`."""
    for stop, patience in ((psutil.Process.terminate, 3.0), (psutil.Process.kill, 3.0)):
        children = [child for child in psutil.Process().children() if child.pid not in before]
        family = [one for child in children for one in [child, *_descendants(child)]]
        if not family:
            return
        for process in family:
            try:
                stop(process)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, patience)
        # What was orphaned meanwhile is ours now, and is found in the next turn.


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
