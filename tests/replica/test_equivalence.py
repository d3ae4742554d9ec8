"""Synchronous training is the training of one process on the mean gradient: for every optimizer and model.

In float64, so that a difference in meaning cannot hide among differences in rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trainings import (
    STEPS,
    Case,
    Net,
    adam,
    assert_identical,
    assert_same,
    batch,
    mean_loss,
    of,
    reference,
    train,
)

import argosy
import argosy.modes
import argosy.testing
from argosy.modes import Sync

SHAPES = [(2, 1), (3, 2), (4, 3)]  # workers, servers
OPTIMIZERS = {
    "sgd": of(torch.optim.SGD, lr=0.1),
    "momentum": of(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adam": of(torch.optim.Adam, lr=0.01),
    "adamw": of(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}
VARIANTS = {
    "rmsprop": of(torch.optim.RMSprop, lr=0.01),
    "adagrad": of(torch.optim.Adagrad, lr=0.05),
    "nesterov": of(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampening": of(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.3),
    "maximize": of(torch.optim.SGD, lr=0.001, maximize=True),
    "amsgrad": of(torch.optim.Adam, lr=0.01, amsgrad=True, weight_decay=0.01, betas=(0.8, 0.95), eps=1e-6),
    "tensor-lr": lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01).double()),
    "adamw-amsgrad": of(torch.optim.AdamW, lr=0.01, amsgrad=True, maximize=True),
    "rmsprop-all": of(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True, weight_decay=0.01),
    "adagrad-all": of(
        torch.optim.Adagrad, lr=0.05, lr_decay=0.01, weight_decay=0.01, initial_accumulator_value=0.1
    ),
}


def check(case: Case, workers: int, servers: int) -> None:
    """One result in all workers, and the reference's: over shared memory, or with copies."""
    states = train(case, workers, servers, lane="queue" if servers == 2 else "memory")
    assert_identical(states)
    assert_same(states[0], reference(case, workers))


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer: str, workers: int) -> None:
    case = Case(optimizer=OPTIMIZERS[optimizer])
    expected = reference(case, workers)
    for servers in (1, 2, 3):
        states = train(case, workers, servers, lane="memory")
        assert_identical(states)
        assert_same(states[0], expected)


@pytest.mark.parametrize("optimizer", VARIANTS)
def test_their_options(optimizer: str) -> None:
    check(Case(optimizer=VARIANTS[optimizer]), 3, 2)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_in_float32(optimizer: str) -> None:
    case = Case(optimizer=OPTIMIZERS[optimizer], dtype=torch.float32)
    states = train(case, 3, 2, lane="memory")
    assert_identical(states)
    assert_same(states[0], reference(case, 3), rtol=1e-4, atol=1e-5)


class Branches(nn.Module):
    """A branch that not every forward pass uses, and a parameter that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(6, 7)
        self.left = nn.Linear(7, 2)
        self.right = nn.Linear(7, 2)
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.idle = nn.Parameter(torch.ones(3))

    def forward(self, images: Tensor, way: str = "both") -> Tensor:
        hidden = self.trunk(images).tanh()
        result: Tensor = hidden.new_zeros(len(hidden), 2)
        if way in ("left", "both"):
            result = result + self.left(hidden)
        if way in ("right", "both"):
            result = result + self.right(hidden) * self.scale
        return result


def branch_loss(model: nn.Module, step: int, worker: int) -> Tensor:
    """Some steps leave a branch out on all workers, some on a few of them."""
    if step % 5 == 0:
        way = "left"
    elif step % 5 == 1:
        way = "right"
    else:
        way = ("left", "right", "both")[(step + worker) % 3]
    images, labels = batch(step, worker)
    return F.mse_loss(model(images, way), labels)


@pytest.mark.parametrize(("workers", "servers"), SHAPES)
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw"])
def test_unused_parameters(optimizer: str, workers: int, servers: int) -> None:
    check(Case(Branches, OPTIMIZERS[optimizer], branch_loss), workers, servers)


@pytest.mark.parametrize("optimizer", VARIANTS)
def test_unused_parameters_of_other_optimizers(optimizer: str) -> None:
    check(Case(Branches, VARIANTS[optimizer], branch_loss), 3, 1)


@pytest.mark.parametrize(("workers", "servers"), SHAPES)
def test_unused_parameters_on_split_tensors(workers: int, servers: int) -> None:
    case = Case(Branches, OPTIMIZERS["adamw"], branch_loss, options={"placement": argosy.Split(over=32)})
    check(case, workers, servers)


def with_frozen_layer(kept_in_optimizer: bool, model: nn.Module) -> torch.optim.Optimizer:
    assert isinstance(model, Net)
    model[2].requires_grad_(False)
    parameters = [p for p in model.parameters() if p.requires_grad or kept_in_optimizer]
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


@pytest.mark.parametrize(("workers", "servers"), SHAPES)
@pytest.mark.parametrize("kept_in_optimizer", [True, False])
def test_frozen_layer(kept_in_optimizer: bool, workers: int, servers: int) -> None:
    check(Case(optimizer=partial(with_frozen_layer, kept_in_optimizer)), workers, servers)


def thaw_at_20(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    assert isinstance(model, Net)
    model[2].requires_grad_(step >= 20)


def test_a_layer_that_thaws() -> None:
    check(Case(optimizer=OPTIMIZERS["adam"], before_step=thaw_at_20), 3, 2)


def two_groups(model: nn.Module) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.05, "betas": (0.5, 0.9)}]
    return torch.optim.AdamW(groups, lr=0.01)


@pytest.mark.parametrize(("workers", "servers"), SHAPES)
def test_two_parameter_groups(workers: int, servers: int) -> None:
    check(Case(optimizer=two_groups), workers, servers)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]] = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=7, gamma=0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=STEPS),
    "one-cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=STEPS + 1),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_schedulers(optimizer: str, scheduler: str) -> None:
    check(Case(optimizer=OPTIMIZERS[optimizer], scheduler=SCHEDULERS[scheduler]), 3, 2)


def momentum_from_20(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step == 20:
        optimizer.param_groups[0]["momentum"] = 0.9
    if step == 40:
        optimizer.param_groups[0]["momentum"] = 0.0


def test_momentum_that_is_turned_on_and_off() -> None:
    check(Case(before_step=momentum_from_20), 3, 2)


def test_scheduler_of_two_groups() -> None:
    check(Case(optimizer=two_groups, scheduler=SCHEDULERS["step"]), 2, 2)


def skipping_loss(model: nn.Module, step: int, worker: int) -> Tensor | None:
    """Worker 1 skips one step in four; at step 9 everybody does."""
    if step == 9 or (worker == 1 and step % 4 == 2):
        return None
    return mean_loss(model, step, worker)


@pytest.mark.parametrize(("workers", "servers"), SHAPES)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_skipped_steps(optimizer: str, workers: int, servers: int) -> None:
    check(Case(optimizer=OPTIMIZERS[optimizer], loss=skipping_loss), workers, servers)


class Normed(nn.Sequential):
    def __init__(self) -> None:
        # No bias: its true gradient is 0 here, and Adam would blow the rounding errors up.
        super().__init__(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        self.register_buffer("table", torch.randn(4))  # never changes: sent once, and the chief's
        self.register_buffer("scratch", torch.randn(2), persistent=False)  # a worker's own business


@pytest.mark.parametrize(("workers", "servers"), SHAPES)
@pytest.mark.parametrize("buffers", ["chief", "mean"])
def test_batch_norm(buffers: argosy.modes.BufferRule, workers: int, servers: int) -> None:
    check(Case(Normed, adam, buffers=buffers), workers, servers)


def tied() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    net[2].weight = net[0].weight
    return net


@pytest.mark.parametrize(("workers", "servers"), SHAPES)
def test_tied_weights(workers: int, servers: int) -> None:
    check(Case(tied, adam), workers, servers)


@pytest.mark.parametrize(("workers", "servers"), SHAPES)
@pytest.mark.parametrize("model", [Net, Branches])
def test_clip_norm_of_the_mean(model: type[nn.Module], workers: int, servers: int) -> None:
    loss = branch_loss if model is Branches else mean_loss
    check(Case(model, OPTIMIZERS["momentum"], loss, clip_norm=0.2), workers, servers)


def test_clip_norm_that_never_bites() -> None:
    check(Case(clip_norm=1e6), 2, 2)


def test_each_workers_own_clipping() -> None:
    check(Case(optimizer=OPTIMIZERS["momentum"], own_clip=0.2), 3, 2)


PLACEMENTS = {
    "greedy": argosy.Greedy(),
    "round-robin": argosy.RoundRobin(),
    "split": argosy.Split(over=64),
    "split-everything": argosy.Split(over=0),
    "function": lambda name: len(name) % 3,
    "one-server": lambda name: 2,  # two servers keep nothing, and take part all the same
    "mapping": {name: index % 2 for index, (name, _) in enumerate(Net().named_parameters())},
}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_placements(placement: str) -> None:
    options = {"placement": PLACEMENTS[placement]}
    check(Case(optimizer=OPTIMIZERS["adam"], clip_norm=0.5, options=options), 3, 3)


def first_layer_only(model: nn.Module) -> torch.optim.Optimizer:
    assert isinstance(model, Net)
    return torch.optim.Adam(model[0].parameters(), lr=0.01)


def add_the_rest_at_20(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    assert isinstance(model, Net)
    if step == 20:
        optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.02})
    if step == 30:
        optimizer.add_param_group({"params": list(model[4].parameters()), "weight_decay": 0.1})


@pytest.mark.parametrize(("workers", "servers"), SHAPES)
def test_a_group_added_later(workers: int, servers: int) -> None:
    check(Case(optimizer=first_layer_only, before_step=add_the_rest_at_20), workers, servers)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 6, sparse=True)
        self.head = nn.Linear(6, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.table((images[:, 0].abs() * 7).long() % 20))  # type: ignore[no-any-return]


@pytest.mark.parametrize("placement", ["greedy", "split-everything"])
def test_sparse_gradients_count_as_dense(placement: str) -> None:
    check(Case(Words, options={"placement": PLACEMENTS[placement]}), 3, 2)


def channels_last() -> nn.Module:
    net = nn.Sequential(nn.Unflatten(1, (3, 2, 1)), nn.Conv2d(3, 4, (2, 1)), nn.Flatten(), nn.Linear(4, 2))
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("placement", ["greedy", "split-everything"])
def test_tensors_in_another_order_of_memory(placement: str) -> None:
    check(Case(channels_last, adam, options={"placement": PLACEMENTS[placement]}), 2, 2)


SIZES = (1, 5, 2, 8)


def uneven_loss(model: nn.Module, step: int, worker: int) -> Tensor:
    images, labels = batch(step, worker, SIZES[worker])
    return F.mse_loss(model(images), labels)


@pytest.mark.parametrize(("workers", "servers"), SHAPES)
def test_weighted_mean(workers: int, servers: int) -> None:
    """Weighted by batch size, the step is that of one large batch."""
    case = Case(optimizer=adam, loss=uneven_loss)
    models = [case.make(seed) for seed in range(workers)]

    def program(replica: argosy.Replica) -> dict[str, Tensor]:
        model = models[replica.index]
        optimizer = replica.distribute(adam(model))
        loader = [batch(step, replica.index, SIZES[replica.index]) for step in range(STEPS)]
        with replica.session(model, optimizer) as session:
            for images, labels in session.batches(loader, epochs=1):
                optimizer.zero_grad()
                F.mse_loss(model(images), labels).backward()
                optimizer.step()
        return model.state_dict()

    states = argosy.testing.LocalCluster(servers, workers, Sync(weighted=True)).run(program)
    assert_identical(states)
    assert_same(states[0], reference(case, workers, weights=SIZES[:workers]))
    assert_same(states[0], one_large_batch(case, workers))


def one_large_batch(case: Case, workers: int) -> dict[str, Tensor]:
    model = case.make(seed=0)
    optimizer = case.optimizer(model)
    for step in range(STEPS):
        parts = [batch(step, worker, SIZES[worker]) for worker in range(workers)]
        optimizer.zero_grad()
        F.mse_loss(model(torch.cat([p[0] for p in parts])), torch.cat([p[1] for p in parts])).backward()
        optimizer.step()
    return model.state_dict()


class Masked(Net):
    """With a buffer that takes more memory than all gradients, and may change."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(100_000, dtype=torch.float64))


def change_the_mask(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step % 3 == 1:
        model.get_buffer("mask").add_(1.0)


@pytest.mark.parametrize("before_step", [Case().before_step, change_the_mask])
@pytest.mark.parametrize("buffers", ["chief", "mean"])
def test_large_buffers_do_not_hide_the_gradients_in_shared_memory(buffers: Any, before_step: Any) -> None:
    case = Case(model=Masked, buffers=buffers, before_step=before_step, steps=12)
    expected = reference(case, workers=2)
    for state in train(case, workers=2, servers=2, lane="memory"):
        assert_same(state, expected)
