"""How gradients travel: ahead of the step, and in fewer bits; neither changes what a step is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trainings import assert_identical, state_of

from argosy.entry import Replica
from argosy.modes import Sync
from argosy.replica import server_exchange
from argosy.replica.optimizer import DistributedOptimizer
from argosy.server.held_pushes import HeldPushes
from argosy.testing import Lane, LocalCluster

STEPS = 12
Tamper = Callable[[nn.Module, DistributedOptimizer, int], None]


def untouched(model: nn.Module, optimizer: DistributedOptimizer, step: int) -> None:
    """The gradients are as backward left them."""


def clipped(model: nn.Module, optimizer: DistributedOptimizer, step: int) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def sometimes_skipped(model: nn.Module, optimizer: DistributedOptimizer, step: int) -> None:
    if step % 3 == 1:
        optimizer.skip()


def twice_backward(model: nn.Module, optimizer: DistributedOptimizer, step: int) -> None:
    model(torch.ones(2, 6)).sum().backward()


def thrown_away(model: nn.Module, optimizer: DistributedOptimizer, step: int) -> None:
    """What backward has made is not what is given: another pass is."""
    optimizer.zero_grad()
    model(torch.ones(2, 6)).sum().backward()


def make(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def train(tamper: Tamper, **options: Any) -> list[dict[str, Tensor]]:
    models = [make(seed) for seed in range(2)]  # here: threads share torch's generator

    def program(replica: Replica) -> dict[str, Tensor]:
        model = models[replica.index]
        optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=0.01), **options)
        generator = torch.Generator().manual_seed(replica.index)
        with replica.session(model, optimizer) as session:
            for step in session.batches(range(STEPS), epochs=1):
                optimizer.zero_grad()
                F.mse_loss(model(torch.randn(4, 6, generator=generator)), torch.zeros(4, 2)).backward()
                tamper(model, optimizer, step)
                optimizer.step()
            replica.barrier()
        return state_of(model)

    states = LocalCluster(2, 2, Sync()).run(program)
    assert_identical(states)
    return states


@pytest.fixture
def buckets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small blocks, and a note of each that a server took ahead of its push."""
    monkeypatch.setattr(server_exchange, "_BLOCK_BYTES", 64)
    taken: list[int] = []
    keep = HeldPushes.keep_ahead

    def noting(self: HeldPushes, worker: int, message: Any) -> None:
        taken.append(message.header.place)
        keep(self, worker, message)

    monkeypatch.setattr(HeldPushes, "keep_ahead", noting)
    return taken


@pytest.mark.parametrize("tamper", [untouched, clipped, sometimes_skipped, twice_backward, thrown_away])
def test_sent_ahead_or_not_the_bits_are_the_same(tamper: Tamper, buckets: list[int]) -> None:
    plain = train(tamper)
    assert not buckets
    ahead = train(tamper, overlap=True)
    assert len(buckets) > STEPS
    assert_identical([plain[0], ahead[0]])


def test_bfloat16_on_the_wire_stays_close_and_ends_in_full_precision(buckets: list[int]) -> None:
    plain, short = train(untouched)[0], train(untouched, wire_dtype=torch.bfloat16)[0]
    assert any(not torch.equal(plain[name], short[name]) for name in plain)
    for name in plain:
        torch.testing.assert_close(short[name], plain[name], rtol=0.05, atol=0.02)
        assert any(value.item() != value.bfloat16().item() for value in short[name].flatten())


@pytest.mark.parametrize("lane", ["queue", "network", "memory"])
def test_what_comes_back_is_rounded_where_it_travels(lane: Lane) -> None:
    def program(replica: Replica) -> list[tuple[float, bool]]:
        weight = nn.Parameter(torch.tensor([1 / 3]))
        optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0), wire_dtype=torch.bfloat16)
        values = []
        with replica.session(nn.ParameterList([weight]), optimizer):
            values.append(weight.item())
            weight.grad = torch.tensor([0.5])
            optimizer.step()
            values.append(weight.item())
        values.append(weight.item())
        return [(round(value, 2), value == torch.tensor(value).bfloat16().item()) for value in values]

    travels = lane != "memory"
    assert LocalCluster(1, 1, Sync(), lane=lane).run(program) == [
        [(0.33, False), (-0.17, travels), (-0.17, False)]
    ]
