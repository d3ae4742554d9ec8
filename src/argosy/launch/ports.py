"""Ports without races: the launcher binds every task's socket itself and hands it over, still bound.

A port that is looked up, released and bound again by the task may be somebody else's in between.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from types import TracebackType

from argosy.cluster.spec import Address, Task

_LOOPBACK = "127.0.0.1"
_BACKLOG = 1024


class Ports:
    """A bound socket a task. That of a server listens already, so that nobody who connects early is refused.
    The first worker of a ring without servers listens itself: who is accepted there waits for its answer.
    """

    def __init__(self, tasks: Sequence[Task], listens: Callable[[Task], bool] | None = None) -> None:
        servers = {task for task in tasks if task.job == "ps"}
        listening = servers if listens is None else {task for task in tasks if listens(task)}
        self._handed = listening or {task for task in tasks[:1] if len(tasks) > 1}
        self._sockets: dict[Task, socket.socket] = {}
        try:
            for task in tasks:
                self._sockets[task] = _bind(listen=task in listening)
        except OSError:
            self.close()
            raise

    @property
    def addresses(self) -> dict[Task, Address]:
        """Where each task is reached."""
        return {task: Address(*bound.getsockname()) for task, bound in self._sockets.items()}

    def take_listener(self, task: Task, keep: bool = False) -> socket.socket | None:
        """A task's socket, for the caller to pass on and close; None for one that nobody connects to.

        `keep`: the task may be started again, and be handed it again. Otherwise the launcher must not keep
        it: a connection to a dead server would be accepted by nobody, in silence.
        """
        if task not in self._handed:
            return None
        return self._sockets[task].dup() if keep else self._sockets.pop(task)

    def release(self, task: Task) -> None:
        """Keep the socket of this task no longer."""
        if task in self._handed and (kept := self._sockets.pop(task, None)) is not None:
            kept.close()

    def close(self) -> None:
        """Release what was not taken."""
        for bound in self._sockets.values():
            bound.close()
        self._sockets.clear()

    def __enter__(self) -> Ports:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def _bind(listen: bool) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.bind((_LOOPBACK, 0))
        if listen:
            bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound
