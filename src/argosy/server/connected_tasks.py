"""Who is connected to a server, over which connection, and whose connection has ended."""

from __future__ import annotations

import hmac
import math
import time
from collections.abc import Callable, Mapping

from argosy.cluster.lease import Lease
from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ConfigError
from argosy.protocol.joining import PROTOCOL_VERSION, Hello
from argosy.wire.channel import Peer

# How often a server looks whether a task out of reach is there again, and whether one stands still.
_LOOK_EVERY = 1.0
_ENDED = -math.inf


class ConnectedTasks:
    """The connections of one server. `is_here` says whether a task that came before still takes part."""

    def __init__(self, cluster: ClusterSpec, me: Task, is_here: Callable[[Task], bool], lease: Lease) -> None:
        self._cluster = cluster
        self.me = me
        self._is_here = is_here
        self._tasks: dict[Peer, Task] = {}
        self._peers: dict[Task, Peer] = {}
        self._lives: dict[Task, str] = {}
        self._lease = lease
        # Those out of reach: since when; `_ENDED`, if the process is known to have ended.
        self._departed: dict[Task, float] = {}
        self._looked = 0.0
        self._given_up: dict[Peer, Task] = {}
        self.ended_lives: set[str] = set()  # of workers that count as gone

    def greet(self, peer: Peer, hello: Hello, task: Task) -> bool:
        """Note who a peer is, after `check`; whether this process has been here before on another way."""
        again = self._lives.get(task) == hello.life
        if task in self._departed and task in self._peers:
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

    @property
    def lives(self) -> dict[Task, str]:
        """Which process each task is."""
        return self._lives

    def recall(self, lives: Mapping[Task, str]) -> None:
        """An earlier process of this server knew these; from now on their leases run, until they come."""
        self._lives = dict(lives)
        self._departed = dict.fromkeys((task for task in lives if self._is_here(task)), time.monotonic())

    def notice(self, peer: Peer, task: Task) -> None:
        """This peer is another way of a task that has not come back since this server was started again: as
        long as it is there, so is the task, which may have nothing to say.
        """
        if task in self._departed and task not in self._peers:
            del self._departed[task]
            self._tasks[peer] = task
            self._peers[task] = peer

    def is_life(self, task: Task, life: str) -> bool:
        """Whether the process that is this task said that this is its life."""
        return hmac.compare_digest(self._lives.get(task, "").encode(), life.encode()) and bool(life)

    def task(self, peer: Peer) -> Task | None:
        """Who a peer is."""
        return self._tasks.get(peer)

    def peer(self, task: Task) -> Peer | None:
        """The connection to use for a task."""
        return self._peers.get(task)

    def depart(self, peer: Peer, final: bool) -> None:
        """A connection has ended; it counts if it was the one in use. Unless that is final, it may be made
        anew while the lease runs.
        """
        if (task := self._tasks.get(peer)) is None:
            return
        if self._peers.get(task) == peer:
            self._departed[task] = _ENDED if final else time.monotonic()
        else:
            del self._tasks[peer]

    def heard(self, peer: Peer, task: Task) -> None:
        """A task has spoken: it is not gone."""
        if task in self._departed:
            del self._departed[task]
            self._peers[task] = peer

    def overdue(
        self, now: float, reaches: Callable[[Peer], bool], stands_still: Callable[[Peer], bool]
    ) -> list[Task]:
        """Those whose process has ended, or whose lease has run out; each is named once.

        `reaches` says whether a task is there whose connection may have been made anew without a word since;
        `stands_still`, whether one with a connection has been stopped.
        """
        if now - self._looked >= _LOOK_EVERY:
            self._looked = now
            self._look(now, reaches, stands_still)
        limit = now - self._lease.seconds
        gone = [task for task, since in self._departed.items() if since < limit]
        for task in gone:
            del self._departed[task]
            if task.job == "worker":  # a server that lives closes a connection when it calls anew
                self.ended_lives.add(self._lives[task])
            if (peer := self._peers.pop(task, None)) is not None:
                del self._tasks[peer]
                self._given_up[peer] = task
        return gone

    def _look(
        self, now: float, reaches: Callable[[Peer], bool], stands_still: Callable[[Peer], bool]
    ) -> None:
        for task, peer in self._peers.items():
            since = self._departed.get(task)
            if since is None:
                if stands_still(peer):
                    self._departed[task] = now
            elif since != _ENDED and not stands_still(peer) and reaches(peer):
                self._departed[task] = now

    def has_ended(self, life: str) -> bool:
        """Whether the process of that life counts as gone: it is not taken back over a new connection."""
        return life in self.ended_lives

    def given_up(self, peer: Peer) -> Task | None:
        """Who a peer was, if it counts as gone since."""
        return self._given_up.get(peer)
