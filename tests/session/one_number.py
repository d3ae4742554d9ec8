"""A training of one number, for the tests of this folder: what a push did to it can be counted."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from argosy.entry import Replica
from argosy.hooks import Hook
from argosy.replica.exchange import Verdict
from argosy.replica.optimizer import DistributedOptimizer
from argosy.session.session import Session


def one_weight() -> nn.Linear:
    """A model of one number, whose gradient is whatever a test sets: then SGD with lr 1 adds them up."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


class Bench:
    """A worker at work on one number: `push(g)` takes g from it."""

    def __init__(self, replica: Replica, last_step: int | None = None, hooks: Sequence[Hook] = ()) -> None:
        self.replica = replica
        self.model = one_weight()
        self.weight = self.model.weight
        self.optimizer: DistributedOptimizer = replica.distribute(
            torch.optim.SGD(self.model.parameters(), lr=1.0)
        )
        self.session: Session = replica.session(self.model, self.optimizer, last_step=last_step, hooks=hooks)

    def push(self, gradient: float, weight: float | None = None) -> Verdict:
        self.weight.grad = torch.full((1, 1), gradient)
        return self.optimizer.step(weight=weight)

    def pull(self) -> Verdict:
        return self.optimizer._exchange.pull()

    @property
    def value(self) -> float:
        return self.weight.item()
