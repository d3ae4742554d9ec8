"""A training of a few steps on a model of two weights, with hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from argosy.cluster.discover import discover
from argosy.entry import Replica
from argosy.hooks import Hook

Gradient = Callable[[int], float]


def alone() -> Replica:
    """A cluster of one."""
    return Replica(discover({}, {}), None)


def train(
    replica: Replica,
    hooks: Iterable[Hook],
    last_step: int = 5,
    directory: Path | None = None,
    gradient: Gradient = lambda step: 1.0,
    loss: Gradient = lambda step: 100.0 + step,
) -> torch.Tensor:
    """Each step's gradient is `gradient(step)`, its loss `loss(step)`, from 0; the final weights."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
    with replica.session(
        model, optimizer, last_step=last_step, directory=directory, hooks=list(hooks)
    ) as session:
        for step, _ in enumerate(session.batches(range(1000))):
            optimizer.zero_grad()
            (model(torch.ones(1, 2)).sum() * gradient(step)).backward()
            optimizer.step()
            session.log(loss=torch.tensor(loss(step)))
    return model.weight.detach()


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What was said."""
    said = capsys.readouterr().err.splitlines()
    return [line.removeprefix("argosy: ") for line in said if line.startswith("argosy: ")]
