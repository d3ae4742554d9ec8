"""A task that is driven by clients: takes their work in, gives their sessions what is theirs, sends parcels
on.

One thread reads the socket; each client has a session with a thread of its own. Whoever sends on the socket
looks at once for what has come meanwhile, as ZeroMQ's descriptor tells of changes only.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import uuid
from collections.abc import Sequence

import torch

from argosy.cluster.cores import tasks_beside
from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.errors import WireError
from argosy.events import say
from argosy.protocol.header import Header
from argosy.protocol.remote_work import (
    REMOTE_VERSION,
    Attach,
    Attached,
    Bereft,
    CutOff,
    Detach,
    Parcel,
    Reply,
    Work,
)
from argosy.remote.task.client_session import Session
from argosy.remote.transport.same_host import LaneListener
from argosy.shared_memory.bells import new_bell, ring
from argosy.wire.channel import Arrival, Delivery, Departure, Garbage, Peer
from argosy.wire.message import Message
from argosy.wire.zmq_channel import ZmqChannel, ZmqListener

_MOST_HELPERS = 3
# So long, in seconds, a session looks for what comes before it sleeps, if all tasks and a client have a core.
_LOOK = 1e-3


class Host:
    """Serves a task's devices from when it is made, in threads, until `close`."""

    def __init__(
        self,
        cluster: ClusterSpec,
        task: Task,
        listener: ZmqListener,
        devices: Sequence[str],
        *,
        helpers: int | None = None,
        wants_foreign: bool = False,
        alone: bool = False,
    ) -> None:
        """`alone`: this process does nothing else."""
        self.task = str(task)
        self._cluster = cluster
        self._listener = listener
        self._devices = tuple(devices)
        self._helpers = _spare_cores() if helpers is None else helpers
        # The client counts too: what looks on its core keeps it from sending the next step.
        has_core = tasks_beside(cluster, task) < len(os.sched_getaffinity(0))
        self._patience = _LOOK if alone and has_core else 0.0
        self._wants_foreign = wants_foreign
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._peers: dict[str, Peer] = {}
        self._channels: dict[str, tuple[ZmqChannel, threading.Lock]] = {}
        self._lane = _listen(cluster.address(task))
        self._ended: list[Session] = []
        # What is not for us: a worker that takes this task for a parameter server.
        self.foreign: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._wake = new_bell()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name=f"argosy-host-{self.task}", daemon=True)
        self._thread.start()

    # --- what sessions need of us -------------------------------------------------------------------------
    def device(self, name: str) -> torch.device:
        """See `Outside`."""
        if name not in self._devices:
            raise WireError(f"device: expected one of {', '.join(self._devices)}, got {name!r:.40}")
        kind, _, index = name.partition(":")
        return torch.device("cpu") if kind == "cpu" else torch.device("cuda", int(index))

    def answer(self, client: str, reply: Reply, frames: Sequence[torch.Tensor] = ()) -> None:
        """See `Outside`."""
        with self._lock:
            if (peer := self._peers.get(client)) is not None and not self._closing:
                self._listener.send(peer, reply, frames)
                self._look()

    def cut_off(self, client: str, reason: str) -> None:
        """See `Outside`."""
        with self._lock:
            if (peer := self._peers.get(client)) is not None and not self._closing:
                self._listener.send(peer, CutOff(reason))

    def address(self, task: str) -> Address:
        """See `Outside`."""
        return self._cluster.address(Task.parse(task))

    def forward(self, task: str, parcel: Parcel, frames: Sequence[torch.Tensor] = ()) -> None:
        """See `Outside`."""
        with self._lock:
            found = self._channels.get(task)
            if found is None and not self._closing:
                channel = ZmqChannel(self.address(task), f"{self.task}#{uuid.uuid4().hex}".encode())
                found = self._channels[task] = (channel, threading.Lock())
        if found is not None:
            channel, lock = found
            with lock:
                channel.send(parcel, frames)

    # --- the loop -----------------------------------------------------------------------------------------
    def _loop(self) -> None:
        poller = select.poll()
        network = (*self._listener.descriptors(), self._wake)
        for descriptor in network:
            poller.register(descriptor, select.POLLIN)
        if self._lane is not None:
            poller.register(self._lane, select.POLLIN)
        while not self._closing:
            with self._lock:
                self._look()
            for descriptor, _ in poller.poll():
                if descriptor not in network:
                    self._welcome()

    def _welcome(self) -> None:
        """A process of this machine has connected, for one of our sessions."""
        assert self._lane is not None
        if (accepted := self._lane.accept()) is None:
            return
        way, client, sock = accepted
        with self._lock:
            session = self._sessions.get(client)
        if session is None:
            sock.close()
        else:
            session.neighbours.adopt(way, sock)

    def _look(self) -> None:
        """Take all that has come. Under the lock."""
        while (arrival := self._listener.take()) is not None:
            if isinstance(arrival, Delivery):
                self._deliver(arrival.peer, arrival.message)
            elif isinstance(arrival, Departure):
                self._depart(arrival)
            elif isinstance(arrival, Garbage):
                say(f"{self.task}: thrown away: {arrival.reason}")

    def _deliver(self, peer: Peer, message: Message[Header]) -> None:
        header = message.header
        if isinstance(header, Work):
            if (session := self._session_of(peer)) is not None:
                session.work(header.records, message.tensors)
        elif isinstance(header, Parcel):
            if (session := self._sessions.get(header.client)) is not None:
                session.mail.parcel(header, message.tensors)
        elif isinstance(header, Attach):
            self._attach(peer, header)
        elif isinstance(header, Bereft):
            if (session := self._session_of(peer)) is not None:
                session.mail.bereft(header.task)
        elif isinstance(header, Detach):
            self._depart(Departure(peer))
        elif self._wants_foreign:
            self.foreign.put(Delivery(peer, message))

    def _session_of(self, peer: Peer) -> Session | None:
        return self._sessions.get(_client_of(peer))

    def _attach(self, peer: Peer, header: Attach) -> None:
        if header.protocol != REMOTE_VERSION or _client_of(peer) != header.client:
            say(f"{self.task}: a client of another version, or under another's name, is not let in")
            return
        if header.client not in self._sessions:
            self._sessions[header.client] = Session(header.client, self, self._helpers, self._patience)
        self._peers[header.client] = peer
        answer = Attached(self.task, self._cluster.as_dict(), self._devices, os.getpid())
        self._listener.send(peer, answer)

    def _depart(self, arrival: Departure) -> None:
        client = _client_of(arrival.peer)
        if self._peers.get(client) == arrival.peer:
            del self._peers[client]
            session = self._sessions.pop(client)
            session.close()
            self._ended = [each for each in self._ended if each.alive] + [session]
        elif self._wants_foreign:
            self.foreign.put(arrival)

    # --- the end ------------------------------------------------------------------------------------------
    def stop(self) -> None:
        """Serve no more, but leave the listener to whoever made it."""
        with self._lock:
            self._closing = True
            sessions = [*self._sessions.values(), *self._ended]
            self._sessions.clear()
        ring(self._wake)
        self._thread.join()
        for session in sessions:
            session.close()
            session.join()
        for channel, _ in self._channels.values():
            channel.close()
        if self._lane is not None:
            self._lane.close()
        os.close(self._wake)
        self.foreign.put(None)

    def close(self) -> None:
        """Serve no more, and free the address."""
        self.stop()
        self._listener.close()


def _listen(address: Address) -> LaneListener | None:
    """The short way to here, for tasks of this machine; without it they take the network."""
    try:
        return LaneListener(address.port) if address.is_loopback else None
    except OSError:
        return None


def _spare_cores() -> int:
    """How many long operations may run beside another. A task that was told to use one thread uses one."""
    return max(0, min(torch.get_num_threads(), len(os.sched_getaffinity(0)), _MOST_HELPERS + 1) - 1)


def _client_of(peer: Peer) -> str:
    return peer.decode(errors="replace").partition("#")[0]
