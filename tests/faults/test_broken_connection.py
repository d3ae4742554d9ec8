"""A TCP connection that breaks is made anew; what was lost with it is sent again, and counts once."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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

# The parameters of the model below: an answer that has them is larger than all else that travels.
COUNT = 5000


class Proxy:
    """Passes bytes on to a port, until it is told to break every connection, or to lose an answer."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._far: set[socket.socket] = set()
        self._ended = False
        self.loses_answers = 0  # so many of those that come next
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
            far = socket.create_connection(("127.0.0.1", self._target))
            self._far.add(far)
            self._pairs.append((near, far))
        elif data := sock.recv(65536):
            if self.loses_answers and sock in self._far and len(data) > COUNT:
                self.loses_answers -= 1
                self.break_connections()
            else:
                sources[sock].sendall(data)
        else:
            self.break_connections()

    def break_connections(self) -> None:
        pairs, self._pairs = self._pairs, []
        self._far.clear()
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


@contextmanager
def one_worker(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replica]:
    """A worker whose only server is behind the proxy."""
    monkeypatch.setattr("argosy.store.client.NOTICE_EVERY", 0.3)
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
    yield Replica(Identity(spec, me, Sync()), client)
    client.leave()
    thread.join(20.0)
    assert not thread.is_alive()


def counting() -> nn.Linear:
    """A model whose every weight counts the gradients of -1."""
    model = nn.Linear(COUNT, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


@pytest.mark.timeout(60)
@pytest.mark.parametrize("loses", [False, True], ids=["between two steps", "with the answer"])
def test_a_broken_connection_is_made_anew(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, loses: bool) -> None:
    statuses, model = [], counting()
    with one_worker(proxy, monkeypatch) as replica:
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        with replica.session(model, optimizer, last_step=12) as session:
            for step in session.batches(range(100)):
                if step % 4 == 3 and loses:
                    proxy.loses_answers = 1
                elif step % 4 == 3:
                    proxy.break_connections()
                model.weight.grad = torch.full((1, COUNT), -1.0)
                statuses.append(optimizer.step().status)
                assert model.weight.eq(len(statuses)).all()  # each gradient counted, and counted once
    if loses:  # the update was made, and the gradient came again
        assert statuses == ["applied", "applied", "applied", "duplicate"] * 3
    else:
        assert len(statuses) == 12
        assert set(statuses) <= {"applied", "duplicate"}


@pytest.mark.timeout(60)
def test_what_was_asked_for_comes_again_if_its_answer_is_lost(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Averages, the optimizer's state and the last parameters are no gradients: they are had anew."""
    model = counting()
    with one_worker(proxy, monkeypatch) as replica:
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5))
        with replica.session(model, optimizer, last_step=2, average=0.5) as session:
            for _ in session.batches(range(100)):
                model.weight.grad = torch.full((1, COUNT), -1.0)
                optimizer.step()
            proxy.loses_answers = 1
            with session.averaged():
                average = model.weight[0, 0].item()
            assert not proxy.loses_answers
            assert model.weight.eq(2.5).all()
            proxy.loses_answers = 1
            state = optimizer.state_dict()["state"][0]
            assert not proxy.loses_answers
            proxy.loses_answers = 1
    assert not proxy.loses_answers
    # After steps to 1 and 2.5, each counts 9/11 and then 9/12.
    assert average == pytest.approx((1 * 9 / 11) * 3 / 12 + 2.5 * 9 / 12)
    assert state["momentum_buffer"].eq(-1.5).all()
    assert model.weight.eq(2.5).all()
