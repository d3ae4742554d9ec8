"""scale_learning_rate: times the number of replicas, after a warm-up, whatever the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import argosy
from argosy.cluster.discover import discover
from argosy.entry import Replica
from argosy.errors import ConfigError
from argosy.hooks import Hook
from argosy.modes import Sync
from argosy.session.session import Session
from argosy.testing import LocalCluster

MakeScheduler = Callable[[torch.optim.Optimizer], Any]
STEPS, WARMUP, BASE, COUNT = 12, 6, 0.5, 2
SCHEDULERS: dict[str, MakeScheduler] = {
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5),
    "MultiplicativeLR": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.8),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=10),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, max_lr=2.0, total_steps=20, cycle_momentum=False
    ),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.ConstantLR(optimizer, 0.5, 3), lr_scheduler.ExponentialLR(optimizer, 0.7)],
        milestones=[4],
    ),
}


def expected_rates(scheduler: MakeScheduler | None) -> list[float]:
    """What the rate of each step should be: a plain scheduler's at the scaled rate, times the warm-up."""
    plain = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=BASE * COUNT)
    schedule = None if scheduler is None else scheduler(plain)
    rates = []
    for step in range(STEPS):
        warm = min(1.0, 1 / COUNT + (1 - 1 / COUNT) * step / WARMUP)
        rates.append(plain.param_groups[0]["lr"] * warm)
        plain.step()
        if schedule is not None:
            schedule.step()
    return rates


def applied_rates(replica: Replica, scheduler: MakeScheduler | None, before: bool = False) -> list[float]:
    """The rate of each step as it shows in a weight whose gradient is always 1."""
    weight = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(weight.weight)
    inner = torch.optim.SGD(weight.parameters(), lr=BASE)
    if before:
        argosy.scale_learning_rate(inner, replica, warmup=WARMUP)
    optimizer = replica.distribute(inner)
    if not before:
        argosy.scale_learning_rate(optimizer, replica, warmup=WARMUP)
    schedule = None if scheduler is None else scheduler(optimizer)
    rates = []
    with replica.session(weight, optimizer, last_step=STEPS):
        for _ in range(STEPS):
            value = weight.weight.item()
            optimizer.zero_grad()
            weight(torch.ones(1, 1, dtype=torch.float64)).sum().backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            rates.append(value - weight.weight.item())
    return rates


@pytest.mark.parametrize("name", [None, *SCHEDULERS])
def test_the_rate_is_the_scheduler_s_times_the_warm_up(name: str | None) -> None:
    scheduler = None if name is None else SCHEDULERS[name]
    cluster = LocalCluster(servers=1, workers=COUNT, mode=Sync())
    for rates in cluster.run(lambda replica: applied_rates(replica, scheduler)):
        assert rates == pytest.approx(expected_rates(scheduler), rel=1e-6)


def test_it_may_be_scaled_before_it_is_distributed() -> None:
    cluster = LocalCluster(servers=2, workers=COUNT, mode=Sync())
    for rates in cluster.run(lambda replica: applied_rates(replica, SCHEDULERS["StepLR"], before=True)):
        assert rates == pytest.approx(expected_rates(SCHEDULERS["StepLR"]), rel=1e-6)


def test_a_step_that_is_kept_back_leaves_the_rate_alone() -> None:
    class SkipSecond(Hook):
        def before_step(self, session: Session) -> None:
            seen.append(session.optimizer.param_groups[0]["lr"])
            if len(seen) == 2:
                session.skip_step()

    seen: list[float] = []

    def program(replica: Replica) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        argosy.scale_learning_rate(optimizer, replica, warmup=4)
        with replica.session(model, optimizer, hooks=[SkipSecond()] if replica.is_chief else []):
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
                assert optimizer.param_groups[0]["lr"] == 2.0

    LocalCluster(servers=1, workers=2, mode=Sync()).run(program)
    assert seen == [1.0, 1.25, 1.5, 1.75]


def test_a_plain_optimizer_counts_its_own_steps() -> None:
    class Two(Replica):
        count = 2

    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    argosy.scale_learning_rate(optimizer, Two(discover({}, {}), None), warmup=2)
    values = []
    for _ in range(4):
        weight.grad = torch.ones(1)
        optimizer.step()
        values.append(weight.item())
    assert values == [-1.0, -2.5, -4.5, -6.5]


def test_groups_that_are_added_later_are_scaled_by_their_default() -> None:
    def program(replica: Replica) -> list[float]:
        first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        optimizer = replica.distribute(torch.optim.SGD(first.parameters(), lr=0.5))
        argosy.scale_learning_rate(optimizer, replica, warmup=0)
        optimizer.add_param_group({"params": list(second.parameters())})
        return [group["lr"] for group in optimizer.param_groups]

    assert LocalCluster(servers=1, workers=2, mode=Sync()).run(program) == [[1.0, 1.0]] * 2


def test_alone_nothing_changes() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    argosy.scale_learning_rate(optimizer, Replica(discover({}, {}), None))
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_what_cannot_work_is_refused() -> None:
    replica = Replica(discover({}, {}), None)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    with pytest.raises(ConfigError, match="warmup: expected a number of steps"):
        argosy.scale_learning_rate(optimizer, replica, warmup=-1)
    lr_scheduler.StepLR(optimizer, 10)
    with pytest.raises(ConfigError, match="create the scheduler after this call"):
        argosy.scale_learning_rate(optimizer, replica)


def test_hooks_of_the_inner_optimizer_run_once_a_step() -> None:
    calls: list[str] = []
    replica = Replica(discover({}, {}), None)
    inner = torch.optim.SGD([weight := torch.zeros(1, requires_grad=True)], lr=0.5)
    handle = inner.register_step_pre_hook(lambda *_: calls.append("pre"))
    inner.register_step_post_hook(lambda *_: calls.append("post"))
    optimizer = replica.distribute(inner)
    weight.grad = torch.ones(1)
    optimizer.step()
    handle.remove()
    optimizer.step()
    assert calls == ["pre", "post", "post"]
