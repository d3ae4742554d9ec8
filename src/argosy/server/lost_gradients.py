"""Gradients that nobody has any more: a server was started again, and so was the worker that gave them.

A step that is decided must be made on every server. If its gradient was lost with a server, its worker sends
it again; if that process has ended, too, the step cannot be made, and the job must not go on without it.
"""

from __future__ import annotations

from argosy.cluster.launcher import tasks_given_up
from argosy.cluster.spec import ClusterSpec, Task
from argosy.server.coordinator import Coordinator
from argosy.server.order_executor import OrderExecutor

# What a process sent before its end may still be on its way for so long, in seconds.
_ON_ITS_WAY = 1.0


class LostGradients:
    """As one server sees it."""

    def __init__(
        self, me: Task, cluster: ClusterSpec, executor: OrderExecutor, coordinator: Coordinator | None
    ) -> None:
        self._me = me
        self._cluster = cluster
        self._executor = executor
        self._coordinator = coordinator
        self._since: dict[tuple[int, int], float] = {}  # when each was first seen to be lost
        self._said = False

    def look(self, now: float) -> tuple[Task, str] | None:
        """The worker whose gradient is lost, and what there is to say; it is said once."""
        if self._said:
            return None
        lost = [(step, key) for step, key in self._executor.lacks() if self._is_gone(*key)]
        self._since = {key: self._since.get(key, now) for _, key in lost}
        for step, key in lost:
            if now - self._since[key] >= _ON_ITS_WAY:
                self._said = True
                worker = Task("worker", key[0])
                return worker, (
                    f"its gradient for step {step} was lost when {self._cluster.describe(self._me)} died, "
                    "and the process that could send it again is gone, too; "
                    "start the job again: with a directory it goes on from its newest checkpoint"
                )
        return None

    def _is_gone(self, worker: int, seq: int) -> bool:
        """Whether the process that gave a push has ended."""
        if self._executor.pushes.of_later_life(worker, seq):
            return True
        if str(Task("worker", worker)) in tasks_given_up():
            return True
        return self._coordinator is not None and not self._coordinator.is_present(worker)
