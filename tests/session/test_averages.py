"""Moving averages of the parameters: kept on the servers or alone, saved, resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from saved_trainings import Program, alone, training
from torch import nn

import argosy
from argosy.entry import Replica
from argosy.errors import ConfigError
from argosy.hooks import Hook
from argosy.modes import Sync
from argosy.session.session import Session
from argosy.testing import LocalCluster


def averaging(last_step: int, **options: Any) -> Program:
    """A program that follows the parameters; own averages of them, and the session's."""

    def program(replica: Replica) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        model = nn.Linear(3, 2)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.5))
        with replica.session(model, optimizer, last_step=last_step, average=0.9, **options) as session:
            mine = model.weight.detach().clone()
            for _ in session.batches(range(10**6)):
                optimizer.zero_grad()
                (model(torch.ones(1, 3)) ** 2).sum().backward()
                step = optimizer.step().global_step
                mine.lerp_(model.weight.detach(), 1 - min(0.9, (1 + step) / (10 + step)))
            before = model.weight.detach().clone()
            with session.averaged():
                theirs = model.weight.detach().clone()
            assert torch.equal(model.weight, before)
        return mine, theirs, before

    return program


@pytest.mark.parametrize("lane", ["queue", "memory"])
def test_averages_are_kept_on_the_servers(lane: Any) -> None:
    for mine, theirs, own in LocalCluster(2, 2, Sync(), lane=lane).run(averaging(30)):
        assert torch.allclose(mine, theirs, atol=1e-6)
        assert not torch.allclose(theirs, own, atol=1e-4)


def test_averages_alone_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    mine, theirs, _ = alone(averaging(20), monkeypatch)
    assert torch.allclose(mine, theirs, atol=1e-6)
    for last_step in (8, 20):
        torch.manual_seed(3)
        _, resumed, _ = alone(averaging(last_step, directory=tmp_path), monkeypatch)
    assert torch.equal(resumed, theirs)
    assert torch.equal(argosy.load(tmp_path, average=True)["weight"], theirs)


def test_averages_that_are_not_kept_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wants(Hook):
        def after_step(self, session: Session) -> None:
            with session.averaged():
                pass

    with pytest.raises(ConfigError, match=r"averaged\(\): expected a session with averages"):
        alone(training(1, [Wants()], directory=tmp_path), monkeypatch)
    alone(training(1, directory=tmp_path), monkeypatch)
    with pytest.raises(ConfigError, match="average: expected moving averages in"):
        argosy.load(tmp_path, average=True)
