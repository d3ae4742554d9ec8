"""Serves a task's devices to clients: passes their work to their sessions, and values on to other tasks.

One thread reads the socket; each client has a session with its own thread. A thread that sends on the socket
also reads at once what has come, because ZeroMQ's descriptor reports changes only.
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
    CutOff,
    Detach,
    Parcel,
    Reply,
    TaskGone,
    Work,
)
from argosy.remote.task.client_session import ClientSession
from argosy.remote.transport.same_host import SameHostListener
from argosy.shared_memory.bells import new_bell, ring
from argosy.wire.channel import Arrival, Delivery, Departure, Garbage, Peer
from argosy.wire.message import Message
from argosy.wire.zmq_channel import ZmqChannel, ZmqListener

_MOST_HELPERS = 3
# Seconds that a session polls before it sleeps, if every task of this host and a client have a core each.
_SPIN = 1e-3


class TaskServer:
    """Serves in threads of its own from when it is made until `close`."""

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
        # The client counts too: a task that polls on its core would delay the client's next step.
        has_core = tasks_beside(cluster, task) < len(os.sched_getaffinity(0))
        self._spin = _SPIN if alone and has_core else 0.0
        self._wants_foreign = wants_foreign
        self._lock = threading.Lock()
        self._sessions: dict[str, ClientSession] = {}
        self._peers: dict[str, Peer] = {}
        self._channels: dict[str, tuple[ZmqChannel, threading.Lock]] = {}
        self._local = _listen(cluster.address(task))
        self._ended: list[ClientSession] = []
        # Messages that are not from clients: from a worker that takes this task for a parameter server.
        self.foreign: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._wake = new_bell()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name=f"argosy-host-{self.task}", daemon=True)
        self._thread.start()

    # --- what sessions need -------------------------------------------------------------------------------
    def device(self, name: str) -> torch.device:
        """See `SessionOwner`."""
        if name not in self._devices:
            raise WireError(f"device: expected one of {', '.join(self._devices)}, got {name!r:.40}")
        kind, _, index = name.partition(":")
        return torch.device("cpu") if kind == "cpu" else torch.device("cuda", int(index))

    def answer(self, client: str, reply: Reply, frames: Sequence[torch.Tensor] = ()) -> None:
        """See `SessionOwner`."""
        with self._lock:
            if (peer := self._peers.get(client)) is not None and not self._closing:
                self._listener.send(peer, reply, frames)
                self._receive()

    def cut_off(self, client: str, reason: str) -> None:
        """See `SessionOwner`."""
        with self._lock:
            if (peer := self._peers.get(client)) is not None and not self._closing:
                self._listener.send(peer, CutOff(reason))

    def address(self, task: str) -> Address:
        """See `SessionOwner`."""
        return self._cluster.address(Task.parse(task))

    def forward(self, task: str, parcel: Parcel, frames: Sequence[torch.Tensor] = ()) -> None:
        """See `SessionOwner`."""
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
        if self._local is not None:
            poller.register(self._local, select.POLLIN)
        while not self._closing:
            with self._lock:
                self._receive()
            for descriptor, _ in poller.poll():
                if descriptor not in network:
                    self._accept_local()

    def _accept_local(self) -> None:
        """A process of this host has connected to one of the sessions."""
        assert self._local is not None
        if (accepted := self._local.accept()) is None:
            return
        way, client, sock = accepted
        with self._lock:
            session = self._sessions.get(client)
        if session is None:
            sock.close()
        else:
            session.local.add(way, sock)

    def _receive(self) -> None:
        """Handle all that has come. Under the lock."""
        while (arrival := self._listener.take()) is not None:
            if isinstance(arrival, Delivery):
                self._handle(arrival.peer, arrival.message)
            elif isinstance(arrival, Departure):
                self._detach(arrival)
            elif isinstance(arrival, Garbage):
                say(f"{self.task}: message dropped: {arrival.reason}")

    def _handle(self, peer: Peer, message: Message[Header]) -> None:
        header = message.header
        if isinstance(header, Work):
            if (session := self._session_of(peer)) is not None:
                session.work(header.records, message.tensors)
        elif isinstance(header, Parcel):
            if (session := self._sessions.get(header.client)) is not None:
                session.exchange.receive(header, message.tensors)
        elif isinstance(header, Attach):
            self._attach(peer, header)
        elif isinstance(header, TaskGone):
            if (session := self._session_of(peer)) is not None:
                session.exchange.lose_task(header.task)
        elif isinstance(header, Detach):
            self._detach(Departure(peer))
        elif self._wants_foreign:
            self.foreign.put(Delivery(peer, message))

    def _session_of(self, peer: Peer) -> ClientSession | None:
        return self._sessions.get(_client_of(peer))

    def _attach(self, peer: Peer, header: Attach) -> None:
        if header.protocol != REMOTE_VERSION or _client_of(peer) != header.client:
            say(f"{self.task}: refused a client that runs another version or uses another client's name")
            return
        if header.client not in self._sessions:
            self._sessions[header.client] = ClientSession(header.client, self, self._helpers, self._spin)
        self._peers[header.client] = peer
        answer = Attached(self.task, self._cluster.as_dict(), self._devices, os.getpid())
        self._listener.send(peer, answer)

    def _detach(self, arrival: Departure) -> None:
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
        """Stop serving, but leave the listener open for its owner."""
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
        if self._local is not None:
            self._local.close()
        os.close(self._wake)
        self.foreign.put(None)

    def close(self) -> None:
        """Stop serving, and free the address."""
        self.stop()
        self._listener.close()


def _listen(address: Address) -> SameHostListener | None:
    """The listener for processes of this host; without it they use the network."""
    try:
        return SameHostListener(address.port) if address.is_loopback else None
    except OSError:
        return None


def _spare_cores() -> int:
    """The number of helper threads. A task that was told to use one thread has none."""
    return max(0, min(torch.get_num_threads(), len(os.sched_getaffinity(0)), _MOST_HELPERS + 1) - 1)


def _client_of(peer: Peer) -> str:
    return peer.decode(errors="replace").partition("#")[0]
