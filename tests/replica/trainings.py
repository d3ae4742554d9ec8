"""Trainings for the tests of this folder: on a LocalCluster, and by plain torch in one process.

The reference knows nothing of Argosy: each step it adds up the gradients of the W batches, each times its
share, in one model, and steps one torch optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from argosy.entry import Replica
from argosy.modes import BufferRule, Sync
from argosy.replica.optimizer import DistributedOptimizer
from argosy.testing import Lane, LocalCluster, Order

STEPS = 50
State: TypeAlias = dict[str, Tensor]
MakeOptimizer: TypeAlias = Callable[[nn.Module], torch.optim.Optimizer]


class Net(nn.Sequential):
    """Enough tensors to be spread over three servers, none of the same size."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 2))


def of(kind: Callable[..., torch.optim.Optimizer], **options: object) -> MakeOptimizer:
    return lambda model: kind(model.parameters(), **options)


sgd = of(torch.optim.SGD, lr=0.1)
adam = of(torch.optim.Adam, lr=0.01)


@cache
def batch(step: int, worker: int, size: int = 4, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """The batch of a worker in a step; always the same."""
    generator = torch.Generator().manual_seed(1000 * step + worker)
    images = torch.randn(size, 6, generator=generator, dtype=torch.float64)
    labels = torch.randn(size, 2, generator=generator, dtype=torch.float64)
    return images.to(dtype), labels.to(dtype)


def mean_loss(model: nn.Module, step: int, worker: int) -> Tensor:
    images, labels = batch(step, worker, dtype=next(model.parameters()).dtype)
    return F.mse_loss(model(images), labels)


@dataclass(frozen=True)
class Case:
    """What is trained and how, for both sides alike. `loss` of None: this worker skips the step."""

    model: Callable[[], nn.Module] = Net
    optimizer: MakeOptimizer = sgd
    loss: Callable[[nn.Module, int, int], Tensor | None] = mean_loss
    scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None
    before_step: Callable[[nn.Module, torch.optim.Optimizer, int], None] = lambda model, optimizer, step: None
    clip_norm: float | None = None
    own_clip: float | None = None
    buffers: BufferRule = "chief"
    dtype: torch.dtype = torch.float64
    steps: int = STEPS
    options: Mapping[str, Any] = field(default_factory=dict)  # of `distribute`, which the reference lacks

    def make(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return self.model().to(self.dtype)


def train(
    case: Case, workers: int, servers: int, order: Order | None = None, lane: Lane = "queue"
) -> list[State]:
    """The state of the model on every worker, trained on a cluster; each starts from a seed of its own."""
    models = [case.make(seed) for seed in range(workers)]
    cluster = LocalCluster(servers, workers, Sync(), order=order, lane=lane)
    return cluster.run(lambda replica: train_one(case, replica, models[replica.index]))


def train_one(case: Case, replica: Replica, model: nn.Module) -> State:
    inner = case.optimizer(model)
    optimizer = replica.distribute(inner, clip_norm=case.clip_norm, **case.options)
    # Half of the workers schedule the wrapper, half what it wraps: it must not matter.
    target = optimizer if replica.index % 2 == 0 else inner
    scheduler = None if case.scheduler is None else case.scheduler(target)
    with replica.session(model, optimizer, buffers=case.buffers) as session:
        for step in session.batches(iter(range(case.steps))):
            case.before_step(model, optimizer, step)
            _step(case, model, optimizer, step, replica.index)
            if scheduler is not None:
                scheduler.step()
    return state_of(model)


def _step(case: Case, model: nn.Module, optimizer: DistributedOptimizer, step: int, worker: int) -> None:
    optimizer.zero_grad()
    loss = case.loss(model, step, worker)
    if loss is None:
        assert optimizer.skip().status == "skipped"
        return
    loss.backward()
    if case.own_clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), case.own_clip)
    assert optimizer.step().status == "applied"


def state_of(model: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def reference(case: Case, workers: int, weights: Sequence[float] | None = None) -> State:
    """What one process makes of the same batches."""
    model = case.make(seed=0)
    optimizer = case.optimizer(model)
    scheduler = None if case.scheduler is None else case.scheduler(optimizer)
    for step in range(case.steps):
        case.before_step(model, optimizer, step)
        if _take_mean_gradient(case, model, step, workers, weights):
            if case.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return state_of(model)


def _take_mean_gradient(
    case: Case, model: nn.Module, step: int, workers: int, weights: Sequence[float] | None
) -> bool:
    """Set `.grad` to the mean over the workers that take part; False if none does."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    gradients: list[list[Tensor | None]] = []
    buffers: list[dict[str, Tensor]] = []
    shares: list[float] = []
    for worker in range(workers):
        model.zero_grad()
        model.load_state_dict(before, strict=False)
        loss = case.loss(model, step, worker)
        if loss is None:
            continue
        loss.backward()
        if case.own_clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), case.own_clip)
        gradients.append([None if p.grad is None else p.grad.to_dense().clone() for p in model.parameters()])
        buffers.append({name: buffer.clone() for name, buffer in model.named_buffers()})
        shares.append(1.0 if weights is None else weights[worker])
    for parameter, column in zip(model.parameters(), zip(*gradients, strict=True), strict=False):
        parameter.grad = _mean(column, shares)
    model.load_state_dict(_merge(case.buffers, buffers) if buffers else before, strict=False)
    return bool(gradients)


def _mean(gradients: Sequence[Tensor | None], shares: Sequence[float]) -> Tensor | None:
    """A worker that does not use a parameter has a gradient of zero, unless nobody uses it."""
    present = [g * share for g, share in zip(gradients, shares, strict=True) if g is not None]
    return torch.stack(present).sum(dim=0) / sum(shares) if present else None


def _merge(rule: BufferRule, brought: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    if rule == "chief":
        return dict(brought[0])
    return {
        name: torch.stack([b[name].double() for b in brought]).mean(dim=0).to(value.dtype)
        for name, value in brought[0].items()
    }


def assert_same(actual: State, expected: State, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Equal within the tolerance of arithmetic in another order; the default is for float64."""
    assert actual.keys() == expected.keys()
    for name in expected:
        difference = (actual[name].double() - expected[name].double()).abs()
        worst = (difference - rtol * expected[name].double().abs()).max().item()
        assert worst <= atol, f"{name}: {actual[name]} is not {expected[name]}: off by {worst}"


def assert_identical(states: Sequence[State]) -> None:
    """The same bits."""
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        for name, value in states[0].items():
            assert torch.equal(state[name], value), name
