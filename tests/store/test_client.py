"""A worker's side of the store, with a real server: what it takes for the answer to its push."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from argosy.cluster.discover import Identity
from argosy.cluster.spec import ClusterSpec, Task
from argosy.entry import Replica
from argosy.modes import Async
from argosy.protocol.frames import FrameSpec
from argosy.protocol.header import Header
from argosy.protocol.training import PushRequest
from argosy.server.parameter_server import ParameterServer
from argosy.store.client import StoreClient
from argosy.wire.channel import Channel
from argosy.wire.local_channel import LocalListener
from argosy.wire.message import Message

SPEC = ClusterSpec({"ps": ["localhost:1"], "worker": ["localhost:2"]})


class Doubling:
    """A channel that sends every push twice, as a client does that has waited for long."""

    in_place = False
    renewals = 0
    hung_up = False

    def __init__(self, inner: Channel) -> None:
        self._inner = inner

    def reserve(self, frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
        return self._inner.reserve(frames)

    def send(self, header: Header, tensors: Sequence[torch.Tensor] = ()) -> None:
        for _ in range(2 if isinstance(header, PushRequest) else 1):
            self._inner.send(header, tensors)

    def receive(self, timeout: float) -> Message[Header] | None:
        return self._inner.receive(timeout)

    def lost_for(self) -> float:
        return self._inner.lost_for()

    def close(self) -> None:
        self._inner.close()


@pytest.mark.timeout(60)
def test_the_answer_to_an_earlier_push_is_not_taken_for_that_to_a_later_one() -> None:
    """The second answer to a push that was sent twice comes before the first to the next."""
    torch.set_num_threads(1)
    listener = LocalListener()
    server = ParameterServer(SPEC, 0, listener, lambda task: listener.connect(str(task).encode()), 20.0)
    thread = threading.Thread(target=server.run)
    thread.start()
    me = Task("worker", 0)
    client = StoreClient(SPEC, me, lambda _: Doubling(listener.connect(b"worker")), 20.0)
    client.hello()
    replica = Replica(Identity(SPEC, me, Async()), client)
    weight, seen = nn.Parameter(torch.zeros(1)), []
    optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
    with replica.session(nn.ParameterList([weight]), optimizer):
        for _ in range(5):
            weight.grad = torch.full((1,), -1.0)
            verdict = optimizer.step()
            seen.append((verdict.status, verdict.global_step, verdict.staleness, weight.item()))
    thread.join(20.0)
    assert not thread.is_alive()
    assert seen == [("applied", step, 0, float(step)) for step in range(1, 6)]
