"""Who is let in: a server's answer to every hello.

A worker waits until the servers have found each other, and on all but the coordinator for its word: who takes
part is the coordinator's to say, and a stranger who calls himself a worker waits here forever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ConfigError
from argosy.events import say
from argosy.protocol.asking import WaitingReport
from argosy.protocol.header import Header
from argosy.protocol.joining import HELLO_FIRST, Admitted, Hello, Refused, Welcome
from argosy.server.connected_tasks import ConnectedTasks
from argosy.server.coordinator import Coordinator
from argosy.server.peer_links import PeerLinks
from argosy.wire.channel import Listener, Peer


class Handshake:
    """Of one server; `lane` is the name of the shorter way to it, if there is one."""

    def __init__(
        self,
        cluster: ClusterSpec,
        listener: Listener,
        connected: ConnectedTasks,
        links: PeerLinks,
        coordinator: Coordinator | None,
        lane: str,
    ) -> None:
        self._cluster = cluster
        self._listener = listener
        self._connected = connected
        self._links = links
        self._coordinator = coordinator
        self._lane = lane
        self._started = time.monotonic()
        self._early: dict[Peer, Hello] = {}
        self._admitted: dict[int, str] = {}  # the life of each worker that the coordinator has let in

    def greet(self, peer: Peer, hello: Hello) -> None:
        """Let a peer in, have it wait, or say why not."""
        try:
            task = self._cluster.require(Task.parse(hello.task))
            self._connected.check(hello, task)
            if self._connected.has_ended(hello.life):
                self._refuse_lost(peer, task)
            elif task.job == "ps":
                self._greet_server(peer, hello, task)
            elif self._is_early(hello):
                self._have_wait(peer, hello)
            else:
                self._greet_worker(peer, hello, task)
        except ConfigError as error:
            self._listener.send(peer, refusal(error))

    def _greet_server(self, peer: Peer, hello: Hello, task: Task) -> None:
        """Only who listens at a server's address may speak for it; before that is known, nobody is."""
        confirmed = self._links.confirms(task, hello.life)
        if confirmed is False:
            raise ConfigError(
                "task",
                f"a server that listens at its own address and has a link to {self._connected.me}",
                f"another process in the name of {task}",
            )
        self._listener.send(peer, self._links.prove(task, hello.life))
        if confirmed is None:
            self._early[peer] = hello
            return
        self._connected.greet(peer, hello, task)
        if self._coordinator is not None:
            self._coordinator.changes.meet(task, hello.life)
        self._listener.send(peer, Welcome(lane=self._lane))

    def _have_wait(self, peer: Peer, hello: Hello) -> None:
        self._early[peer] = hello
        missing = tuple(self._cluster.describe(task) for task in self._links.missing())
        if missing:
            self._listener.send(peer, WaitingReport(missing, time.monotonic() - self._started))

    def _greet_worker(self, peer: Peer, hello: Hello, task: Task) -> None:
        again = self._connected.greet(peer, hello, task)
        coordinator = self._coordinator
        if coordinator is None:
            self._listener.send(peer, Welcome(lane=self._lane))
        elif coordinator.failure is not None:
            self._listener.send(peer, coordinator.failure)
        else:
            if not again:
                self._links.tell(Admitted(task.index, hello.life))
                if coordinator.is_in_training(task.index):  # another process was, that is
                    say(f"{self._cluster.describe(task)} is back")
            base = coordinator.arrive(task.index, again)
            self._listener.send(peer, Welcome(base, self._lane, coordinator.gather_base(task.index)))

    def _is_early(self, hello: Hello) -> bool:
        stranger = self._coordinator is None and hello.life not in self._admitted.values()
        return stranger or not self._links.ready

    def refuse(self, peer: Peer, header: Header) -> None:
        """Answer somebody who is not in the job."""
        if (task := self._connected.given_up(peer)) is None:
            self._listener.send(peer, Refused("protocol", "peer", HELLO_FIRST, type(header).__name__))
            return
        self._refuse_lost(peer, task)

    def _refuse_lost(self, peer: Peer, task: Task) -> None:
        why = f"it had no connection to {self._connected.me} for too long, and the job goes on without it"
        self._listener.send(peer, Refused("lost", str(task), "", why, "start the task again"))

    @property
    def admitted(self) -> dict[int, str]:
        """The life of each worker that the coordinator has let in, as another server knows it."""
        return self._admitted

    def recall(self, admitted: Mapping[int, str]) -> None:
        """An earlier process of this server knew these."""
        self._admitted = dict(admitted)

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
