"""Strangers who claim to be somebody: they are refused, and what they do then harms nobody."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from argosy.entry import Replica
from argosy.errors import WireError
from argosy.modes import Sync
from argosy.protocol.header import LogState
from argosy.protocol.joining import Hello, Known, Refused
from argosy.store.client import StoreClient
from argosy.testing import LocalCluster
from argosy.wire.channel import Channel
from argosy.wire.local_channel import LocalListener

GRACE = 0.2


class StagedCluster(LocalCluster):
    """Three servers, one worker; a server begins when it is let."""

    def __init__(self) -> None:
        self.may_serve = [threading.Event() for _ in range(3)]
        super().__init__(mode=Sync(), servers=3, workers=1, wait=30.0, lease=GRACE)

    def _serve(self, index: int) -> None:
        self.may_serve[index].wait(30.0)
        super()._serve(index)

    def let(self, *servers: int) -> None:
        for server in servers:
            self.may_serve[server].set()

    def stranger(self, server: int, claims: str) -> Channel:
        """Somebody who says hello to a server in another's name."""
        listener = self._listeners[server]
        assert isinstance(listener, LocalListener)
        channel = listener.connect(b"stranger")
        channel.send(Hello(claims, 3, 1, "a stranger's life"))
        return channel


def train(replica: Replica) -> float:
    """Goes on for longer than a departure is forgiven."""
    model = nn.Linear(1, 3, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
    end = time.monotonic() + 4 * GRACE
    with replica.session(model, optimizer) as session:
        steps = 0
        for _ in session.batches(range(10**6)):
            model.weight.grad = torch.ones_like(model.weight)
            optimizer.step()
            steps += 1
            if time.monotonic() > end:
                break
    assert torch.equal(model.weight, torch.full((3, 1), -float(steps)))
    return float(steps)


def refused(channel: Channel) -> Refused:
    message = channel.receive(10.0)
    assert message is not None
    assert isinstance(message.header, Refused), message
    return message.header


@pytest.mark.parametrize("stays", [False, True], ids=["hangs up", "stays"])
@pytest.mark.parametrize(
    ("server", "claims"),
    [(0, "/job:ps/task:0"), (1, "/job:ps/task:1"), (1, "/job:ps/task:2"), (2, "/job:ps/task:1")],
)
def test_a_server_that_has_no_link(server: int, claims: str, stays: bool) -> None:
    """In the server's own name, or in that of one that it never talks to."""
    cluster = StagedCluster()
    cluster.let(0, 1, 2)
    channel = cluster.stranger(server, claims)
    error = refused(channel)
    assert (error.kind, error.got) == ("config", f"another process in the name of {claims}")
    if not stays:
        channel.close()
    cluster.run(train)


@pytest.mark.parametrize("stays", [False, True], ids=["hangs up", "stays"])
@pytest.mark.parametrize(("server", "claims"), [(0, "/job:ps/task:1"), (1, "/job:ps/task:0")])
def test_a_server_that_is_not_up_yet(server: int, claims: str, stays: bool) -> None:
    """Nobody is believed before the server itself has answered, and the stranger is refused then."""
    cluster = StagedCluster()
    cluster.let(server)
    channel = cluster.stranger(server, claims)
    first = channel.receive(10.0)
    assert first is not None
    assert isinstance(first.header, Known)
    channel.send(LogState(1, 10**6, 0))  # what only a server may say
    assert refused(channel).expected == "hello first"
    if not stays:
        channel.close()
        time.sleep(2 * GRACE)
    cluster.let(0, 1, 2)
    cluster.run(train)
    if stays:
        assert refused(channel).got == f"another process in the name of {claims}"


@pytest.mark.parametrize(("server", "claims"), [(0, "/job:ps/task:1"), (1, "/job:ps/task:0")])
def test_a_server_that_is_there(server: int, claims: str) -> None:
    """In the middle of the training."""
    cluster = StagedCluster()
    cluster.let(0, 1, 2)

    def disturbed(replica: Replica) -> float:
        channel = cluster.stranger(server, claims)
        assert refused(channel).field in ("task", "task_index")
        channel.close()
        return train(replica)

    cluster.run(disturbed)


def test_a_task_that_neither_serves_nor_works() -> None:
    cluster = StagedCluster()
    cluster.let(0, 1, 2)
    channel = cluster.stranger(0, "/job:evaluator/task:0")
    assert refused(channel).field == "job_name"
    channel.close()
    cluster.run(train)


def test_only_the_chief_opens_a_directory(tmp_path: Path) -> None:
    cluster = LocalCluster(mode=Sync(), servers=1, workers=2)
    directory = tmp_path / "a stranger's choice"

    def program(replica: Replica) -> None:
        if replica.index == 1:
            client = replica._client
            assert isinstance(client, StoreClient)
            with pytest.raises(WireError, match="only the chief sends OpenDirectory"):
                client.open(str(directory), 3)

    cluster.run(program)
    assert not directory.exists()
