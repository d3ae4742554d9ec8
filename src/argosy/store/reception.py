"""Who is let in: a server's answer to every hello.

A worker waits until the servers have found each other, and on all but the coordinator for its word: who takes
part is the coordinator's to say, and a stranger who calls himself a worker waits here forever.
"""

from __future__ import annotations

import time

from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ConfigError
from argosy.store.attendance import Attendance
from argosy.store.coordinator import Coordinator
from argosy.store.links import Links
from argosy.wire.channel import Listener, Peer
from argosy.wire.protocol import Admitted, Hello, Refused, Waiting, Welcome


class Reception:
    """Of one server; `lane` is the name of the shorter way to it, if there is one."""

    def __init__(
        self,
        cluster: ClusterSpec,
        listener: Listener,
        attendance: Attendance,
        links: Links,
        coordinator: Coordinator | None,
        lane: str,
    ) -> None:
        self._cluster = cluster
        self._listener = listener
        self._attendance = attendance
        self._links = links
        self._coordinator = coordinator
        self._lane = lane
        self._started = time.monotonic()
        self._early: dict[Peer, Hello] = {}
        self._admitted: dict[int, str] = {}  # the life of each worker that the coordinator has let in

    def greet(self, peer: Peer, hello: Hello) -> None:
        """Let a peer in, have it wait, or say why not."""
        if self._is_early(hello):
            self._early[peer] = hello
            missing = tuple(self._cluster.describe(task) for task in self._links.missing())
            if missing:
                self._listener.send(peer, Waiting(missing, time.monotonic() - self._started))
            return
        try:
            task, again = self._attendance.greet(peer, hello)
        except ConfigError as error:
            self._listener.send(peer, refusal(error))
            return
        coordinator = self._coordinator
        if coordinator is None or task.job == "ps":
            self._listener.send(peer, Welcome(lane=self._lane))
        elif coordinator.failure is not None:
            self._listener.send(peer, coordinator.failure)
        else:
            if not again:
                self._links.tell_all(Admitted(task.index, hello.life))
            base = coordinator.arrive(task.index, again)
            self._listener.send(peer, Welcome(base, self._lane, coordinator.meetings_held))

    def _is_early(self, hello: Hello) -> bool:
        if not hello.task.startswith("/job:worker/"):
            return False
        stranger = self._coordinator is None and hello.life not in self._admitted.values()
        return stranger or not self._links.ready

    def admit(self, worker: int, life: str) -> None:
        """The coordinator has let this process in."""
        self._admitted[worker] = life
        self.greet_early()

    def greet_early(self) -> None:
        """Those who wait may come in now."""
        early, self._early = self._early, {}
        for peer, hello in early.items():
            self.greet(peer, hello)

    def depart(self, peer: Peer) -> None:
        """A connection has ended."""
        self._early.pop(peer, None)

    def waits(self, task: Task) -> bool:
        """Whether a task is here, and not yet let in."""
        return any(hello.task == str(task) for hello in self._early.values())


def refusal(error: ConfigError) -> Refused:
    """An error as it travels to the one who caused it."""
    return Refused("config", error.field, error.expected, str(error.got), error.remedy)
