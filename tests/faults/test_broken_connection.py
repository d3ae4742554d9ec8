"""A TCP connection that breaks is made anew; what was lost with it is sent again, and counts once."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

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
        self.loses: Literal["requests", "answers"] | None = (
            None  # the next of these, and the connection with it
        )
        self.losses = 0
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
            return
        data = sock.recv(65536)
        loses = self.loses == ("requests" if sock in [near for near, _ in self._pairs] else "answers")
        if not data or loses:
            self.losses += loses
            self.loses = None if loses else self.loses
            self.break_connections()
        else:
            sources[sock].sendall(data)

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
def one_worker(proxy: Proxy) -> Iterator[Replica]:
    """A worker whose only server is behind the proxy."""
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
    """A model whose weight counts the gradients of -1."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["requests", "answers"])
def test_a_broken_connection_is_made_anew(proxy: Proxy, what: Literal["requests", "answers"]) -> None:
    """Whether a push or its answer was lost with it: each gradient counts once, and the worker is told so."""
    verdicts, model = [], counting()
    with one_worker(proxy) as replica:
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        with replica.session(model, optimizer, last_step=12) as session:
            for step in session.batches(range(100)):
                if step % 4 == 3:
                    proxy.loses = what
                model.weight.grad = torch.full((1, 1), -1.0)
                verdicts.append(optimizer.step())
                assert model.weight.item() == step + 1
    assert proxy.losses == 3
    assert model.weight.item() == 12.0
    assert [verdict.status for verdict in verdicts] == ["applied"] * 12
    assert [verdict.global_step for verdict in verdicts] == list(range(1, 13))
    assert verdicts[-1].stop


@pytest.mark.timeout(60)
def test_what_was_asked_for_comes_again_if_its_answer_is_lost(proxy: Proxy) -> None:
    """Averages, the optimizer's state and the last parameters are no gradients: they are had anew."""
    model = counting()
    with one_worker(proxy) as replica:
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5))
        with replica.session(model, optimizer, last_step=2, average=0.5) as session:
            for _ in session.batches(range(100)):
                model.weight.grad = torch.full((1, 1), -1.0)
                optimizer.step()
            proxy.loses = "answers"
            with session.averaged():
                average = model.weight.item()
            assert model.weight.item() == 2.5
            proxy.loses = "answers"
            state = optimizer.state_dict()["state"][0]
            proxy.loses = "answers"
    assert proxy.losses == 3
    # After steps to 1 and 2.5, each counts 9/11 and then 9/12.
    assert average == pytest.approx((1 * 9 / 11) * 3 / 12 + 2.5 * 9 / 12)
    assert state["momentum_buffer"].item() == -1.5
    assert model.weight.item() == 2.5


@pytest.mark.timeout(60)
def test_a_worker_whose_connection_breaks_while_it_computes_is_not_gone(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has nothing to say for longer than a departure is forgiven, but its connection is there again."""
    monkeypatch.setattr("argosy.store.attendance.RETURN_GRACE", 0.5)
    listener = ZmqListener(Address("127.0.0.1", proxy._target))
    channel = ZmqChannel(Address("127.0.0.1", proxy.port), b"worker")
    spec = ClusterSpec({"ps": [f"127.0.0.1:{proxy._target}"], "worker": ["localhost:1"]})

    def connect(task: Task) -> ZmqChannel:
        raise AssertionError(f"there is no {task}")

    server = ParameterServer(spec, 0, listener, connect, wait=20.0)
    thread = threading.Thread(target=server.run)
    thread.start()
    client = StoreClient(spec, Task("worker", 0), lambda _: channel, 20.0)
    client.hello()
    proxy.break_connections()
    computes_until = time.monotonic() + 2.0
    while time.monotonic() < computes_until:
        time.sleep(0.1)
    assert client.resume().step == 0
    client.leave()
    thread.join(20.0)
    assert not thread.is_alive()
    assert "is gone" not in capsys.readouterr().err
