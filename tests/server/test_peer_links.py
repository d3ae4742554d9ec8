"""Links between servers that lose messages: they are sent again, and the job ends exactly right."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from argosy.entry import Replica
from argosy.modes import Async, Mode, Sync
from argosy.protocol.header import Header, LogEntry, LogState
from argosy.protocol.joining import JobOver
from argosy.testing import LocalCluster
from argosy.wire.channel import Channel

STEPS = 30


class Forgetful:
    """A channel that loses, doubles or holds back what goes along it, as a seeded coin says."""

    def __init__(self, inner: Channel, rate: float, seed: int) -> None:
        self._inner = inner
        self._rate = rate
        self._random = random.Random(seed)
        self._late: list[Header] = []

    def send(self, header: Header, tensors: Sequence[torch.Tensor] = ()) -> None:
        if not isinstance(header, LogEntry | LogState) or self._random.random() >= self._rate:
            self._inner.send(header, tensors)
            late, self._late = self._late, []
            for each in late:
                self._inner.send(each)
            return
        fate = self._random.choice(["lost", "doubled", "late"])
        if fate == "doubled":
            self._inner.send(header)
            self._inner.send(header)
        elif fate == "late":
            self._late.append(header)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class LossyCluster(LocalCluster):
    """Three servers, two workers; all links between servers lose something."""

    def __init__(self, mode: Mode, rate: float, seed: int) -> None:
        self._loss = (rate, seed)
        super().__init__(mode=mode, servers=3, workers=2, wait=60.0)

    def _open(self, to: Any, name: str) -> Channel:
        channel = super()._open(to, name)
        rate, seed = self._loss
        return Forgetful(channel, rate, seed + len(name)) if name.startswith("/job:ps") else channel


def train(replica: Replica, clip_norm: float | None = None) -> float:
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0), clip_norm=clip_norm)
    with replica.session(model, optimizer, last_step=STEPS) as session:
        for _ in session.batches(range(10**6)):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    return sum(parameter.sum().item() for parameter in model.parameters())


@pytest.mark.parametrize("mode", [Sync(), Async(), Async(max_staleness=1)], ids=str)
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.7])
@pytest.mark.parametrize("clip_norm", [None, 1e9], ids=["plain", "clipped"])
def test_what_is_lost_between_servers_is_sent_again(
    mode: Mode, rate: float, clip_norm: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every update takes 1 off every parameter, so that the sums are the updates of each server."""
    monkeypatch.setattr("argosy.server.peer_links.TELL_EVERY", 0.02)
    monkeypatch.setattr("argosy.server.parameter_server._LOOK_EVERY", 0.02)
    results = LossyCluster(mode, rate, seed=7).run(lambda replica: train(replica, clip_norm))
    assert set(results) == {-8.0 * STEPS}


def test_the_end_of_the_job_reaches_every_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator ends last, even if its last word is lost a few times."""
    sent: list[Header] = []
    original = Forgetful.send

    def lose_the_end(self: Forgetful, header: Header, tensors: Sequence[torch.Tensor] = ()) -> None:
        if isinstance(header, LogEntry) and isinstance(header.entry, JobOver):
            sent.append(header)
            if len(sent) <= 4:
                return
        original(self, header, tensors)

    monkeypatch.setattr(Forgetful, "send", lose_the_end)
    outcome = LossyCluster(Sync(), 0.0, seed=1).run_to_the_end(train)
    assert not outcome.errors
    assert len(sent) >= 6
