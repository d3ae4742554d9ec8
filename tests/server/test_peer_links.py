"""Links between servers that lose a message: the job ends, everywhere, with an error that names the link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from argosy.entry import Replica
from argosy.errors import JobFailed
from argosy.modes import Async, Mode, Sync
from argosy.protocol.header import Header, Numbered
from argosy.protocol.joining import JobOver
from argosy.testing import LocalCluster
from argosy.wire.channel import Channel

STEPS = 30


class Forgetful:
    """A channel that loses the numbered messages from `first` to `last`, but for the end of the job."""

    def __init__(self, inner: Channel, first: int, last: int) -> None:
        self._inner = inner
        self._lost = range(first, last + 1)

    def send(self, header: Header, tensors: Sequence[torch.Tensor] = ()) -> None:
        match header:
            case Numbered(number, told) if number in self._lost and not isinstance(told, JobOver):
                return
        self._inner.send(header, tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class LossyCluster(LocalCluster):
    """Two servers, two workers; one of the servers' links loses something."""

    def __init__(self, mode: Mode, sender: int, first: int, last: int) -> None:
        self._loss = (f"/job:ps/task:{sender}", first, last)
        super().__init__(mode=mode, servers=2, workers=2, wait=40.0)

    def _open(self, to: Any, name: str) -> Channel:
        channel = super()._open(to, name)
        sender, first, last = self._loss
        return Forgetful(channel, first, last) if name == sender else channel


def train(replica: Replica) -> float:
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
    with replica.session(model, optimizer, last_step=STEPS) as session:
        for _ in session.batches(range(10**6)):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    return model.weight.sum().item()


@pytest.mark.parametrize("mode", [Sync(), Async()], ids=str)
@pytest.mark.parametrize(("sender", "receiver"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("last", [9, 10**9], ids=["one", "all that follow"])
def test_a_lost_message_ends_the_job(mode: Mode, sender: int, receiver: int, last: int) -> None:
    """Also if nothing comes after it: nobody would ever see a gap."""
    outcome = LossyCluster(mode, sender, 9, last).run_to_the_end(train)
    assert not outcome.results
    tasks = {f"/job:{job}/task:{index}" for job in ("ps", "worker") for index in (0, 1)}
    assert outcome.errors.keys() == tasks
    for error in outcome.errors.values():
        assert isinstance(error, JobFailed), outcome.errors
        assert error.task == f"/job:ps/task:{receiver}"
        assert error.reason.startswith(
            f"missed message 9 from /job:ps/task:{sender} at localhost:{1000 + sender}: "
            "the connection between them broke; start the job again"
        )


def test_without_a_loss_there_is_nothing_to_say() -> None:
    outcome = LossyCluster(Sync(), 0, 10**9, 10**9).run_to_the_end(train)
    assert not outcome.errors
    assert set(outcome.results.values()) == {-6.0 * STEPS}
