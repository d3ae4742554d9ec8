"""How tasks become processes: forked from one that has imported torch, or cold if that cannot be.

Made by `launch.local` before all else that takes time: the fork server imports meanwhile.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from types import TracebackType

from argosy.cluster.spec import Task
from argosy.launch.descriptors import Descriptors
from argosy.launch.fork_client import ForkFailed, ForkServer
from argosy.launch.guard import Guard
from argosy.launch.job import JobSpec, TaskPlan, shared_environ
from argosy.launch.process import Process, TaskProcess, start_cold
from argosy.launch.signal_socket import INTERRUPTS, SignalSocket


class Starter:
    """Starts the tasks of a job, some of them again; `warn` is told, once, if that has to be cold."""

    def __init__(
        self,
        job: JobSpec,
        guard: Guard,
        descriptors: Descriptors,
        cores: int,
        warn: Callable[[str], None],
    ) -> None:
        self._guard = guard
        self._descriptors = descriptors
        self._warn = warn
        self._server: ForkServer | None = None
        if job.preload is None:
            return
        if job.script.suffix != ".py":  # an archive, or compiled: the interpreter knows what to do
            self._go_cold(f"{str(job.script)!r} is not a .py file")
            return
        environ = shared_environ(job, os.environ, cores)
        self._server = ForkServer(job.python_flags, job.command, environ, job.preload, guard)

    def wait_until_ready(self, signals: SignalSocket) -> int | None:
        """Until tasks can be started, seconds perhaps; returns a signal that told us to end meanwhile."""
        if self._server is None:
            return None
        poller = select.poll()
        poller.register(signals, select.POLLIN)
        poller.register(self._server, select.POLLIN)
        while self._server.fileno() not in {number for number, _ in poller.poll()}:
            for number in signals.take():
                if number in INTERRUPTS:
                    return number
        try:
            self._server.wait_until_ready()
        except ForkFailed as error:
            self._go_cold(str(error))
        return None

    def start(self, plan: TaskPlan, may_restart: bool) -> TaskProcess:
        """Start a task, which may have to be started once more after this."""
        with self._descriptors.handed(plan.task, keep=may_restart) as handed:
            return TaskProcess(plan.task, self._process(plan, handed), self._guard)

    def release(self, task: Task) -> None:
        """It will not be started again: keep nothing that would make others wait for it."""
        self._descriptors.release(task)

    def close(self) -> None:
        """No more tasks will be started."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def __enter__(self) -> Starter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _process(self, plan: TaskPlan, handed: Mapping[str, int]) -> Process:
        if self._server is not None:
            try:
                return self._server.start(plan.environ, handed)
            except ForkFailed as error:
                self._go_cold(str(error))
        return start_cold(plan, self._guard, handed)

    def _go_cold(self, why: str) -> None:
        self.close()
        self._warn(f"argosy: no fork server, so each task imports torch for itself: {why}")
