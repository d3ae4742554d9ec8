"""A TCP connection that breaks is made anew; what was lost with it is sent again, and counts once."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import torch
from jobs import free_ports
from torch import nn

from argosy.cluster.discover import Identity
from argosy.cluster.lease import Lease
from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.entry import Replica
from argosy.errors import ArgosyError
from argosy.modes import Sync
from argosy.protocol.joining import Register
from argosy.protocol.layout import Layout, ParameterSpec, Share, extend
from argosy.protocol.training import PushRequest
from argosy.server.parameter_server import ParameterServer
from argosy.store.client import StoreClient
from argosy.store.optimizers import describe
from argosy.wire.zmq_channel import ZmqChannel, ZmqListener

ME = Task("worker", 0)


class Proxy:
    """Passes bytes on to a port, until it is told to break every connection."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
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


class Serving:
    """One server in a thread, and its only worker's client, which reaches it through a proxy."""

    def __init__(self, proxy: Proxy, lease: float = 15.0) -> None:
        port = proxy._target
        self.spec = ClusterSpec({"ps": [f"127.0.0.1:{port}"], "worker": ["localhost:1"]})
        listener = ZmqListener(Address("127.0.0.1", port))
        self._server = ParameterServer(self.spec, 0, listener, self._no_other, wait=20.0, lease=Lease(lease))
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        address = Address("127.0.0.1", proxy.port)
        self.client = StoreClient(self.spec, ME, lambda _: ZmqChannel(address, b"worker"), 20.0)
        self.client.hello()

    def _no_other(self, task: Task) -> ZmqChannel:
        raise AssertionError(f"there is no {task}")

    def _serve(self) -> None:
        try:
            self._server.run()
        except ArgosyError as error:
            self.error = error

    def end(self) -> None:
        self._thread.join(20.0)
        assert not self._thread.is_alive()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["requests", "answers"])
def test_a_broken_connection_is_made_anew(proxy: Proxy, what: Literal["requests", "answers"]) -> None:
    """Whether a push or its answer was lost with it: each gradient counts once, and the worker is told so."""
    torch.set_num_threads(1)
    serving = Serving(proxy)
    replica = Replica(Identity(serving.spec, ME, Sync()), serving.client)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
    verdicts = []
    with replica.session(model, optimizer, last_step=12) as session:
        for step in session.batches(range(100)):
            if step % 4 == 3:
                proxy.loses = what
            model.weight.grad = torch.full((1, 1), -1.0)
            verdicts.append(optimizer.step())
            assert model.weight.item() == step + 1
    serving.end()
    assert serving.error is None
    assert proxy.losses == 3
    assert [verdict.status for verdict in verdicts] == ["applied"] * 12
    assert [verdict.global_step for verdict in verdicts] == list(range(1, 13))
    assert verdicts[-1].stop


@pytest.mark.timeout(60)
def test_a_worker_whose_connection_breaks_while_it_computes_is_not_gone(
    proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has nothing to say for longer than a departure is forgiven, but its connection is there again."""
    serving = Serving(proxy, lease=0.5)
    proxy.break_connections()
    computes_until = time.monotonic() + 2.0
    while time.monotonic() < computes_until:
        time.sleep(0.1)
    assert serving.client.resume().step == 0
    serving.client.leave()
    serving.end()
    assert serving.error is None
    assert "is gone" not in capsys.readouterr().err


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["requests", "answers"])
def test_what_may_be_asked_twice_is(proxy: Proxy, what: Literal["requests", "answers"]) -> None:
    """A gather, a farewell: the loss of either harms nobody."""
    serving = Serving(proxy)
    for value in (b"\x01", b"\x02"):
        proxy.loses = what
        assert serving.client.gather(msgspec.Raw(value)) == {0: msgspec.Raw(value)}
    proxy.loses = "requests"
    serving.client.leave()
    serving.end()
    assert proxy.losses == 3
    assert serving.error is None


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["requests", "answers"])
def test_what_must_not_be_done_twice_is_not(
    proxy: Proxy, tmp_path: Path, what: Literal["requests", "answers"]
) -> None:
    """The chief opens a directory and registers, and each time the request or its answer is lost."""
    torch.set_num_threads(1)
    serving = Serving(proxy)
    proxy.loses = what
    opened = serving.client.open(str(tmp_path / "directory"), 3)
    assert not opened.again, "a directory that was opened once counts as opened before"
    parameters = [ParameterSpec("weight", (2,), "float32", 0)]
    proxy.loses = what
    assert serving.client.describe(parameters, Sync()) == Layout()
    layout = extend(Layout(), parameters, [[Share(0, 0, 2)]])
    register = Register(layout, describe(torch.optim.SGD([torch.zeros(2)], lr=1.0)), Sync())
    proxy.loses = what
    serving.client.register([(register, [torch.ones(2)])])
    proxy.loses = what
    assert serving.client.describe(parameters, Sync()) == layout
    assert proxy.losses == 4
    (answer,) = serving.client.push(PushRequest(0, 0, "pull"), {})
    assert [tensor.tolist() for tensor in answer.tensors] == [[1.0, 1.0]]
    serving.client.leave()
    serving.end()
    assert serving.error is None


@pytest.mark.timeout(60)
def test_values_that_were_asked_for_come_again_if_the_answer_is_lost(proxy: Proxy) -> None:
    """Averages, the optimizer's state and the last parameters are no gradients: they are had anew."""
    torch.set_num_threads(1)
    serving = Serving(proxy)
    replica = Replica(Identity(serving.spec, ME, Sync()), serving.client)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
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
    serving.end()
    assert serving.error is None
    assert proxy.losses == 3
    # After steps to 1 and 2.5, each counts 9/11 and then 9/12.
    assert average == pytest.approx((1 * 9 / 11) * 3 / 12 + 2.5 * 9 / 12)
    assert state["momentum_buffer"].item() == -1.5
    assert model.weight.item() == 2.5
