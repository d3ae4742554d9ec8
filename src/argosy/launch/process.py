"""One task as a process of its own session, so that all it starts can be ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import IO, Any, Protocol

from argosy.cluster.spec import Task
from argosy.launch.guard import Guard
from argosy.launch.job import TaskPlan


class Process(Protocol):
    """What is used of subprocess.Popen: a child of ours that leads its session."""

    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    @property
    def stderr(self) -> IO[bytes] | None: ...
    @property
    def returncode(self) -> int | Any: ...
    def wait(self) -> int: ...


def start_cold(plan: TaskPlan, guard: Guard, handed: Mapping[str, int]) -> Process:
    """A new interpreter for the task. The guard knows its group before its program runs.

    `handed`: open files that it gets, by the variables that tell it their numbers.
    """
    numbers = {name: str(file) for name, file in handed.items()}
    # preexec_fn is safe here: the launcher has one thread.
    return subprocess.Popen(
        plan.argv,
        env=dict(plan.environ) | numbers,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
        pass_fds=tuple(handed.values()),
        preexec_fn=guard.watch_this_process,
    )


class TaskProcess:
    """A started task, however it was started."""

    def __init__(self, task: Task, process: Process, guard: Guard) -> None:
        self.task = task
        self._process = process
        self._guard = guard

    @property
    def pid(self) -> int:
        """Also the number of its process group."""
        return self._process.pid

    @property
    def stdout(self) -> IO[bytes]:
        """The reading end of its output, for the caller to close."""
        return _present(self._process.stdout)

    @property
    def stderr(self) -> IO[bytes]:
        """The reading end of its errors, for the caller to close."""
        return _present(self._process.stderr)

    def collect(self) -> int | None:
        """The return code (-n: by signal n) once it has ended, and what it started too; None before."""
        if self._process.returncode is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            # Until it is waited for, the number of the group cannot be given to another.
            self.send(signal.SIGKILL)
            self._guard.forget(self.pid)
        return self._process.wait()

    def end(self) -> None:
        """Kill it, and all that it started, if it still runs."""
        self.send(signal.SIGKILL)
        self._process.wait()

    def send(self, number: int) -> None:
        """Signal the task and all that it started."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


def _present(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("the task was started without pipes")
    return stream
