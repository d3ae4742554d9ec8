"""Who is connected to a server, over which connection, and whose connection has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ConfigError
from argosy.protocol.joining import PROTOCOL_VERSION, Hello
from argosy.wire.channel import Peer

# A connection that ended may be made anew within this time; after it, the peer counts as gone.
RETURN_GRACE = 2.0


class ConnectedTasks:
    """The connections of one server. `is_here` says whether a task that came before still takes part."""

    def __init__(self, cluster: ClusterSpec, me: Task, is_here: Callable[[Task], bool]) -> None:
        self._cluster = cluster
        self.me = me
        self._is_here = is_here
        self._tasks: dict[Peer, Task] = {}
        self._peers: dict[Task, Peer] = {}
        self._lives: dict[Task, str] = {}
        self._departed: dict[Task, float] = {}
        self._given_up: dict[Peer, Task] = {}

    def greet(self, peer: Peer, hello: Hello, task: Task) -> bool:
        """Note who a peer is, after `check`; whether this process has been here before on another way."""
        again = self._lives.get(task) == hello.life
        if task in self._departed:
            del self._tasks[self._peers[task]]
        self._tasks[peer] = task
        self._peers[task] = peer
        self._lives[task] = hello.life
        self._departed.pop(task, None)
        return again

    def check(self, hello: Hello, task: Task) -> None:
        """Raises ConfigError if this process cannot take part as that task."""
        if task.job not in ("ps", "worker"):
            raise ConfigError("job_name", "ps or worker", task.job)
        if hello.protocol != PROTOCOL_VERSION:
            raise ConfigError(
                "protocol", f"version {PROTOCOL_VERSION}", hello.protocol, "update Argosy there"
            )
        mine = (self._cluster.count("ps"), self._cluster.count("worker"))
        if (hello.servers, hello.workers) != mine:
            raise ConfigError(
                f"cluster of {task}",
                f"{mine[0]} ps and {mine[1]} worker tasks, as {self.me} has it",
                f"{hello.servers} and {hello.workers}",
            )
        other = self._lives.get(task, hello.life) != hello.life
        connected = task in self._peers and task not in self._departed
        if other and connected and self._is_here(task):
            raise ConfigError(
                "task_index", f"a task that is free; {task} is taken by a running process", "it"
            )

    def task(self, peer: Peer) -> Task | None:
        """Who a peer is."""
        return self._tasks.get(peer)

    def peer(self, task: Task) -> Peer | None:
        """The connection to use for a task."""
        return self._peers.get(task)

    def depart(self, peer: Peer) -> None:
        """A connection has ended; it counts if it was the one in use, and may be made anew for a while."""
        if (task := self._tasks.get(peer)) is None:
            return
        if self._peers.get(task) == peer:
            self._departed[task] = time.monotonic()
        else:
            del self._tasks[peer]

    def heard(self, peer: Peer, task: Task) -> None:
        """A task has spoken: it is not gone."""
        if task in self._departed:
            del self._departed[task]
            self._peers[task] = peer

    def overdue(self, reaches: Callable[[Peer], bool]) -> list[Task]:
        """Those whose connection ended, and who did not come back; each is named once.

        `reaches` says whether there is a connection to a peer, made anew without a word since.
        """
        limit = time.monotonic() - RETURN_GRACE
        late = [task for task, since in self._departed.items() if since < limit]
        gone = []
        for task in late:
            del self._departed[task]
            if not reaches(peer := self._peers[task]):
                gone.append(task)
                del self._tasks[self._peers.pop(task)]
                self._given_up[peer] = task
        return gone

    def given_up(self, peer: Peer) -> Task | None:
        """Who a peer was, if it counts as gone since."""
        return self._given_up.get(peer)
