"""A training that saves and goes on, for the tests of this folder, on servers or alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import argosy
from argosy.entry import Replica
from argosy.hooks import Hook

ONE_AT_A_TIME = threading.Lock()
Program = Callable[[Replica], Any]


class Tied(nn.Module):
    """Tied weights, a buffer, a constant that is not trained, and half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.out = nn.Linear(4, 6)
        self.out.weight = self.embed.weight
        self.short = nn.Linear(4, 4).bfloat16()
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.frozen(self.embed(x)))
        return self.out(hidden + self.short(hidden.bfloat16()).float())  # type: ignore[no-any-return]


def model_and_optimizer() -> tuple[Tied, torch.optim.Optimizer]:
    with ONE_AT_A_TIME:  # the workers are threads, and share torch's generator
        torch.manual_seed(0)
        model = Tied()
    trained = [p for n, p in model.named_parameters() if not n.startswith("frozen")]
    return model, torch.optim.AdamW(trained, lr=0.05)


def training(
    last_step: int, hooks: list[Hook] | None = None, placement: Any = None, **options: Any
) -> Program:
    """A program that trains on data that depends on the step alone; the final `state_dict`."""

    def program(replica: Replica) -> dict[str, torch.Tensor]:
        model, inner = model_and_optimizer()
        optimizer = replica.distribute(inner, placement=placement)
        with replica.session(model, optimizer, last_step=last_step, hooks=hooks or (), **options) as session:
            for _ in session.batches(range(10**6)):
                x = (torch.arange(8) * (session.global_step + 1) + replica.index) % 6
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), (x + 1) % 6).backward()
                optimizer.step()
        return {name: value.clone() for name, value in model.state_dict().items()}

    return program


def alone(program: Program, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("sys.argv", ["train.py"])
    return program(argosy.join())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
