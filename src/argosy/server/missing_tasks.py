"""Who is missing: how long a server waits for others, and what follows when they do not come or are gone."""

from __future__ import annotations

import time

from argosy.cluster.launcher import failure_elsewhere, tasks_given_up
from argosy.cluster.lease import Lease
from argosy.cluster.settings import NOTICE_EVERY
from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import TaskLost, WaitTimeout
from argosy.events import say, say_waiting
from argosy.modes import Sync
from argosy.server.coordinator import Coordinator
from argosy.server.handshake import Handshake
from argosy.server.model_buffers import ModelBuffers
from argosy.server.peer_links import PeerLinks

# How often a server looks for word of the launcher, in seconds.
_LOOK_EVERY = 0.5


class MissingTasks:
    """As one server sees it."""

    def __init__(
        self,
        me: Task,
        cluster: ClusterSpec,
        coordinator: Coordinator | None,
        links: PeerLinks,
        handshake: Handshake,
        buffers: ModelBuffers,
        wait: float,
        lease: Lease,
        restarts: bool,
    ) -> None:
        self._me = me
        self._cluster = cluster
        self._coordinator = coordinator
        self._links = links
        self._handshake = handshake
        self._buffers = buffers
        self._wait = wait
        self._lease = lease
        self._restarts = restarts
        self._lost_at: dict[Task, float] = {}  # of those that are to come back
        self._started = self._last_notice = self._last_look = time.monotonic()

    def look(self, now: float) -> None:
        """Say for whom this server waits, every few seconds; raises WaitTimeout when it gives up.

        Also when the launcher says that a task has failed, which then never comes, nor tells why.
        """
        if now - self._last_look >= _LOOK_EVERY:
            self._last_look = now
            self._heed_launcher()
            if self._coordinator is not None and (returning := self._coordinator.roster.returning()):
                self._look_for(returning, self._coordinator, now)
        if now - self._last_notice >= NOTICE_EVERY:
            self._last_notice = now
            for task in self._missing():
                waited = max(0.0, now - self._lost_at.get(task, self._started))
                say_waiting(self._cluster.describe(task), waited)
            for worker in () if self._coordinator is None else self._coordinator.roster.returning():
                say_waiting(
                    self._cluster.describe(Task("worker", worker)),
                    now - self._lost_at.get(Task("worker", worker), now),
                )
            for task, seconds in self._links.silent():
                say_waiting(self._cluster.describe(task), seconds)
                if seconds > self._lease.seconds:
                    self._fail_with(task, f"nothing was heard of it for {seconds:.0f} s")
        if now - self._started > self._wait:
            late = [t for t in self._missing() if now - self._lost_at.get(t, self._started) > self._wait]
            self._give_up_on(late)

    def _heed_launcher(self) -> None:
        if (failure := failure_elsewhere()) is None:
            return
        if self._coordinator is None:
            raise failure
        self._coordinator.fail(failure.task, failure.reason)

    def _look_for(self, returning: list[int], coordinator: Coordinator, now: float) -> None:
        """Those that the launcher does not start again, or that take too long, are gone for good."""
        given_up = tasks_given_up()
        for worker in returning:
            task = Task("worker", worker)
            late = now - self._lost_at.setdefault(task, now) > self._wait
            if late or str(task) in given_up:
                why = f"is not back after {self._wait:.0f} s" if late else "is not started again"
                say(f"{self._cluster.describe(task)} {why}; the job goes on without it")
                self._buffers.forget(worker)
                coordinator.give_up(worker)

    def _missing(self) -> list[Task]:
        servers = self._links.missing()
        if self._coordinator is None:
            return servers
        workers = [Task("worker", worker) for worker in self._coordinator.roster.missing()]
        return servers + [task for task in workers if not self._handshake.waits(task)]

    def _give_up_on(self, missing: list[Task]) -> None:
        if not missing:
            return
        names = [self._cluster.describe(task) for task in missing]
        error = WaitTimeout(f"{self._me} gave up waiting", names, self._wait)
        coordinator = self._coordinator
        nobody = coordinator is None or coordinator.mode is None
        in_step = isinstance(coordinator and coordinator.mode, Sync)
        if nobody or in_step or any(task.job == "ps" for task in missing):
            if coordinator is not None:
                coordinator.fail(self._me, str(error))
            raise error
        say(f"{error}; the job goes on without")
        for task in missing:
            self.lose(task)

    def lose(self, task: Task, why: str = "its connection ended") -> None:
        """A task is gone: it is waited for if it will be started again; else a job goes on without a worker,
        but not without a server.
        """
        if task.job == "ps" and self._coordinator is not None:
            self._coordinator.changes.lose(task)
        if task.job == "ps" and self._restarts:
            say(f"{self._cluster.describe(task)} is gone; waiting for it to be started again")
            self._lost_at[task] = time.monotonic()  # the link itself calls it again
        elif task.job == "ps":
            self._fail_with(task, why)
        elif self._coordinator is None or not self._coordinator.roster.has_a_part(task.index):
            return
        elif self._coordinator.expects_back(task.index):
            say(f"{self._cluster.describe(task)} is gone; waiting for it to be started again")
            self._lost_at[task] = time.monotonic()
            self._coordinator.expect_back(task.index)
        else:
            say(f"{self._cluster.describe(task)} is gone; the job goes on without it")
            self._buffers.forget(task.index)
            self._coordinator.lose(task.index)

    def _fail_with(self, server: Task, why: str) -> None:
        error = TaskLost(self._cluster.describe(server), why)
        if self._coordinator is None:
            raise error
        self._coordinator.fail(server, str(error))
