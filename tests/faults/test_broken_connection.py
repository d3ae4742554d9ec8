"""A TCP connection that breaks is made anew; what was lost with it is sent again, and counts once."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
from jobs import free_ports
from torch import nn

from argosy.cluster.discover import Identity
from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.modes import Sync
from argosy.replica.replica import Replica
from argosy.store.client import StoreClient
from argosy.store.server import ParameterServer
from argosy.wire.zmq_channel import ZmqChannel, ZmqListener


class Proxy:
    """Passes bytes on to a port, until it is told to break every connection."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended:
            sources = {one: other for a, b in list(self._pairs) for one, other in ((a, b), (b, a))}
            with suppress(OSError, ValueError):  # a connection that was broken meanwhile
                ready = select.select([self._server, *sources], [], [], 0.02)[0]
                for sock in ready:
                    self._pass_on(sock, sources)

    def _pass_on(self, sock: socket.socket, sources: dict[socket.socket, socket.socket]) -> None:
        if sock is self._server:
            near, _ = self._server.accept()
            self._pairs.append((near, socket.create_connection(("127.0.0.1", self._target))))
        elif data := sock.recv(65536):
            sources[sock].sendall(data)
        else:
            self.break_connections()

    def break_connections(self) -> None:
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for sock in pair:
                sock.close()

    def close(self) -> None:
        self._ended = True
        self._thread.join()
        self.break_connections()
        self._server.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy(free_ports(1)[0])
    yield made
    made.close()


@pytest.mark.timeout(60)
def test_a_broken_connection_is_made_anew(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argosy.store.waiting.NOTICE_EVERY", 0.3)
    torch.set_num_threads(1)
    port = proxy._target
    spec = ClusterSpec({"ps": [f"127.0.0.1:{port}"], "worker": ["localhost:1"]})
    listener = ZmqListener(Address("127.0.0.1", port))

    def connect(task: Task) -> ZmqChannel:
        raise AssertionError(f"there is no {task}")

    server = ParameterServer(spec, 0, listener, connect, wait=20.0)
    thread = threading.Thread(target=server.run)
    thread.start()
    me = Task("worker", 0)
    client = StoreClient(spec, me, lambda _: ZmqChannel(Address("127.0.0.1", proxy.port), b"worker"), 20.0)
    client.hello()
    replica = Replica(Identity(spec, me, Sync()), client)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
    statuses = []
    with replica.session(model, optimizer, last_step=12) as session:
        for step in session.batches(range(100)):
            if step % 4 == 3:
                proxy.break_connections()
            model.weight.grad = torch.full((1, 1), -1.0)
            statuses.append(optimizer.step().status)
    thread.join(20.0)
    assert not thread.is_alive()
    assert model.weight.item() == 12.0  # each gradient counted, and counted once
    assert set(statuses) <= {"applied", "duplicate"}
