"""The real servers, client and session in one process, over channels that break at random.

A connection that breaks takes with it what is on its way, in both directions, and is made anew at once: what
TCP does, without its timing. Every channel of a job has a coin of its own, drawn from the job's seed.
"""

from __future__ import annotations

import queue
import random
from collections.abc import Sequence
from typing import Any

import torch

from argosy.entry import Replica
from argosy.modes import Async, Mode, Sync
from argosy.protocol.frames import FrameSpec
from argosy.protocol.header import Header
from argosy.server import parameter_server, peer_links
from argosy.store import conversation
from argosy.testing import LocalCluster
from argosy.wire.channel import Channel
from argosy.wire.local_channel import LocalChannel
from argosy.wire.message import Message

STEPS = 8


def hurry() -> None:
    """Look for broken connections more often than is good for a real job."""
    peer_links.TELL_EVERY = 0.02
    parameter_server._LOOK_EVERY = 0.01
    conversation._SLICE = 0.02


class BreakingChannel:
    """A `Channel` that breaks in `rate` of all sends and receives."""

    in_place = False

    def __init__(self, inner: LocalChannel, rate: float, seed: str) -> None:
        self._inner = inner
        self._rate = rate
        self._random = random.Random(seed)
        self.renewals = 0

    def _breaks(self) -> bool:
        if self._random.random() >= self._rate:
            return False
        self.renewals += 1
        while True:  # answers that are on their way are lost, too
            try:
                self._inner.outbox.get_nowait()
            except queue.Empty:
                return True

    def reserve(self, frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
        return self._inner.reserve(frames)

    def send(self, header: Header, tensors: Sequence[torch.Tensor] = ()) -> None:
        if self._breaks():
            if self._random.random() < 0.5:  # it had arrived before the connection broke
                self._inner.send(header, tensors)
            return
        self._inner.send(header, tensors)

    def receive(self, timeout: float) -> Message[Header] | None:
        return None if self._breaks() else self._inner.receive(min(timeout, 0.05))

    @property
    def hung_up(self) -> bool:
        return self._inner.hung_up

    def lost_for(self) -> float:
        return self._inner.lost_for()

    def close(self) -> None:
        self._inner.close()


class BreakingCluster(LocalCluster):
    """A job all of whose connections break, those between servers too."""

    def __init__(self, mode: Mode, servers: int, workers: int, rate: float, seed: int) -> None:
        self._breaking = (rate, seed)
        super().__init__(mode=mode, servers=servers, workers=workers, wait=60.0)

    def _open(self, to: Any, name: str) -> Channel:
        inner = super()._open(to, name)
        assert isinstance(inner, LocalChannel)
        rate, seed = self._breaking
        return BreakingChannel(inner, rate, f"{seed}/{name}/{to}")


def train(replica: Replica, clip_norm: float | None, skips: bool) -> tuple[int, int, float, float]:
    """Every update takes 1 off every parameter: its own pushes, the step, and the least and most updates."""
    model = torch.nn.ParameterList([torch.zeros(3), torch.zeros(2), torch.zeros(4)])
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0), clip_norm=clip_norm)
    applied = 0
    with replica.session(model, optimizer, last_step=STEPS) as session:
        for turn in session.batches(range(10**6)):
            if skips and turn % 3 == 1:
                optimizer.skip()
                continue
            for parameter in model:
                parameter.grad = torch.ones_like(parameter)
            applied += optimizer.step().status == "applied"
    values = torch.cat([parameter.detach() for parameter in model])
    return applied, session.global_step, values.min().item(), values.max().item()


def play(seed: int) -> None:
    """One random job; raises AssertionError if a gradient was lost, or counted twice, anywhere."""
    chance = random.Random(seed)
    modes: list[Mode] = [Sync(), Async(), Async(max_staleness=1), Sync(aggregate=1)]
    mode = chance.choice(modes)
    servers, workers = chance.randint(1, 3), chance.randint(1, 3)
    rate = chance.choice([0.02, 0.1, 0.2])
    clip_norm = chance.choice([None, None, 1e9])
    skips = chance.random() < 0.3
    cluster = BreakingCluster(mode, servers, workers, rate, seed)
    results = cluster.run(lambda replica: train(replica, clip_norm, skips))
    for applied, step, least, most in results:
        assert (step, least, most) == (STEPS, -STEPS, -STEPS), f"seed {seed}: {mode}, {results}"
        if isinstance(mode, Sync) and mode.aggregate is None and not skips:
            assert applied == STEPS, f"seed {seed}: {results}"
    if isinstance(mode, Async):
        assert sum(applied for applied, *_ in results) == STEPS, f"seed {seed}: {results}"
