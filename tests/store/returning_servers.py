"""Real servers in threads, as a worker sees them when their process dies and is started again.

Nothing but the inbox is closed, and opened again at the same address. What a new process finds in memory that
was kept for it stays; it has forgotten the connections of workers, their gradient memory, and what it held.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from argosy.cluster.discover import Identity
from argosy.cluster.lease import Lease
from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.entry import Replica
from argosy.modes import Mode, Sync
from argosy.protocol.header import Header
from argosy.server.order_executor import OrderExecutor
from argosy.server.parameter_server import ParameterServer
from argosy.store.caller_handshake import connect
from argosy.store.client import StoreClient
from argosy.store.conversation import Conversation
from argosy.store.returning_channel import ReturningChannel
from argosy.wire.channel import Arrival, Channel, Delivery, Peer
from argosy.wire.inbox import Inbox
from argosy.wire.local_channel import LocalListener
from argosy.wire.unix_channel import UnixChannel, UnixListener
from argosy.wire.zmq_channel import ZmqListener

LEASE = Lease(15.0)
# "before": what has come is lost with the process; "after": it is done, and the answer is lost.
When = Literal["before", "after"]


class KeptExecutor(OrderExecutor):
    """As of a server that was started again."""

    def forget(self) -> None:
        """What a new process does not know."""
        self.pushes._gradient_memory.clear()
        self.pushes._held.clear()
        self.pushes._ahead.clear()
        self._lacking = True


class Deaths:
    """A `Listener` whose process dies as planned; `forget` is called in its thread then."""

    def __init__(self) -> None:
        self._bound = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._bound.getsockname()[1])
        self.between_servers = LocalListener()
        self.count = 0
        self.pause = 0.05  # until it is there again
        self.gone = threading.Event()  # set: it does not come back
        self.heard: list[Header] = []  # from workers
        self._plan: list[tuple[type[Header], Callable[[Header], bool], When]] = []
        self._mute = False
        self._now = threading.Event()
        self.forget: Callable[[], None] = lambda: None
        self._open()

    def _open(self) -> None:
        network = ZmqListener(self.address, listen_fd=os.dup(self._bound.fileno()), lease=LEASE)
        self.inbox = Inbox(network, UnixListener())

    def die_at(
        self, kind: type[Header], when: When, which: Callable[[Header], bool] = lambda header: True
    ) -> None:
        """Die at the next message of a kind, once."""
        self._plan.append((kind, which, when))

    def die(self) -> None:
        """Die now, and wait for it."""
        count = self.count
        self._now.set()
        while self.count == count:
            time.sleep(0.001)

    def _restart(self) -> None:
        self._now.clear()
        self.inbox.close()
        self._mute = False
        self.count += 1
        if self.gone.wait(self.pause):
            raise RuntimeError("it does not come back")
        self._open()
        self.forget()

    def receive(self, timeout: float) -> Arrival | None:
        deadline = time.monotonic() + timeout
        while True:
            if self._mute or self._now.is_set():
                self._restart()
            if (arrival := self.between_servers.receive(0.0)) is not None:
                return arrival
            arrival = self.inbox.receive(0.002)
            if isinstance(arrival, Delivery) and self._dies(arrival.message.header):
                continue
            if arrival is not None or time.monotonic() > deadline:
                return arrival

    def _dies(self, header: Header) -> bool:
        self.heard.append(header)
        for each in self._plan:
            kind, which, when = each
            if isinstance(header, kind) and which(header):
                self._plan.remove(each)
                self._mute = when == "after"
                if not self._mute:
                    self._restart()
                return not self._mute
        return False

    def _is_server(self, peer: Peer) -> bool:
        return peer.startswith(b"/job:ps/")

    def copies(self, peer: Peer) -> bool:
        return not self._is_server(peer) and self.inbox.copies(peer)

    def stands_still(self, peer: Peer) -> bool:
        return False

    def send(self, peer: Peer, header: Header, tensors: Sequence[torch.Tensor] = ()) -> bool:
        if self._is_server(peer):
            return self.between_servers.send(peer, header, tensors)
        return self._mute or self.inbox.send(peer, header, tensors)

    def close(self) -> None:
        self.inbox.close()
        self.between_servers.close()
        self._bound.close()


class ReturningServers:
    """Servers that die and come back, and what their workers need."""

    def __init__(
        self,
        servers: int = 2,
        workers: int = 1,
        mode: Mode | None = None,
        *,
        use_lane: bool = True,
        wait: float = 30.0,
        lease: Lease = LEASE,
    ) -> None:
        torch.set_num_threads(1)
        self.servers = [Deaths() for _ in range(servers)]
        self._use_lane = use_lane
        self._wait = wait
        self._lease = lease
        self._mode = mode or Sync()
        self.errors: list[BaseException] = []
        self.spec = ClusterSpec(
            {
                "ps": [str(each.address) for each in self.servers],
                "worker": [f"localhost:{1 + index}" for index in range(workers)],
            }
        )
        self.parameter_servers = [self._make(index) for index in range(servers)]
        self._threads = [
            threading.Thread(target=self._serve, args=(server,), daemon=True)
            for server in self.parameter_servers
        ]
        for thread in self._threads:
            thread.start()

    def _make(self, index: int) -> ParameterServer:
        def connect_to(task: Task) -> Channel:
            return self.servers[task.index].between_servers.connect(f"/job:ps/task:{index}".encode())

        listener = self.servers[index]
        server = ParameterServer(self.spec, index, listener, connect_to, self._wait, lease=self._lease)
        server._handshake._lane = listener.inbox.lane  # for workers; links stay when an inbox is closed
        server._executor.__class__ = KeptExecutor
        executor = server._executor
        assert isinstance(executor, KeptExecutor)

        def forget() -> None:
            executor.forget()
            server._handshake._lane = listener.inbox.lane
            server._handshake._early.clear()
            connected = server._connected
            for task in self.spec.tasks("worker"):
                if (peer := connected._peers.pop(task, None)) is not None:
                    connected._tasks.pop(peer, None)
                    connected._departed.pop(task, None)

        listener.forget = forget
        return server

    def _serve(self, server: ParameterServer) -> None:
        try:
            server.run()
        except BaseException as error:
            self.errors.append(error)

    def client(self, worker: int = 0) -> StoreClient:
        """Of a worker that has been let in."""
        me = Task("worker", worker)
        client = StoreClient(
            self.spec,
            me,
            lambda server: connect(self.spec, me, server, self._lease),
            self._wait,
            self._use_lane,
            self._lease,
            restarts=True,
        )
        client.hello()
        return client

    def replica(self, worker: int = 0) -> Replica:
        """A worker that has been let in."""
        identity = Identity(self.spec, Task("worker", worker), self._mode, wait=self._wait)
        return Replica(identity, self.client(worker))

    def end(self) -> None:
        """Wait until the servers have ended; all must be well."""
        for thread in self._threads:
            thread.join(20.0)
        assert not any(thread.is_alive() for thread in self._threads)
        assert not self.errors


def talk_of(client: StoreClient) -> Conversation:
    """The channels of a client."""
    return client._talk


def lives_there(client: StoreClient, server: int, tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in the memory that a server writes its answers to now."""
    channel = talk_of(client).channels[server]
    assert isinstance(channel, ReturningChannel)
    assert isinstance(channel._channel, UnixChannel)
    theirs = channel._channel._connection._theirs
    assert theirs is not None
    return theirs.address <= tensor.data_ptr() < theirs.address + theirs.size
