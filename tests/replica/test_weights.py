"""What a step is made of when gradients are scaled, weighted or accumulated; also when there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from ways import WAYS, Way, run

from argosy.entry import Replica
from argosy.errors import ConfigError
from argosy.modes import Sync
from argosy.protocol.decisions import Status
from argosy.replica.optimizer import DistributedOptimizer
from argosy.session.session import Session

Loop = Callable[[Replica, nn.Parameter, DistributedOptimizer, Session], Any]


def on_one_number(loop: Loop, **options: Any) -> Callable[[Replica], tuple[Any, float]]:
    """Runs a loop on a number that SGD takes gradients from as they are; what it returned, and the number."""

    def program(replica: Replica) -> tuple[Any, float]:
        weight = nn.Parameter(torch.zeros(1))
        optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0), **options)
        with replica.session(nn.ParameterList([weight]), optimizer) as session:
            returned = loop(replica, weight, optimizer, session)
            replica.barrier()
        return returned, weight.item()

    return program


# --- scaled -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["queue", "memory"])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_scaled_gradient_that_is_too_large_for_the_wire_is_scaled_down_first(
    way: Way, overlap: bool
) -> None:
    def loop(_: Replica, weight: nn.Parameter, optimizer: DistributedOptimizer, __: Session) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17)  # the largest float16 is 65504
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)

    assert run(way, on_one_number(loop, wire_dtype=torch.float16, overlap=overlap)) == [(None, -1.0)] * 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scaled", [False, True], ids=["accumulated", "scaled"])
def test_a_step_without_any_gradient_changes_nothing(way: Way, scaled: bool) -> None:
    def loop(_: Replica, __: nn.Parameter, optimizer: DistributedOptimizer, ___: Session) -> Status:
        if not scaled:
            optimizer.step(every=2)
            return optimizer.step(every=2).status
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        return optimizer.verdict.status

    assert run(way, on_one_number(loop)) == [("applied", 0.0)] * (1 if way == "alone" else 2)


# --- weighted ---------------------------------------------------------------------------------------------
# Worker 0 gives 1, worker 1 gives 2, in two backward passes each, of four examples in all.
SIZES = [[1, 3], [3, 1]]


def batches(replica: Replica) -> list[torch.Tensor]:
    return [torch.full((size,), replica.index + 1.0) for size in SIZES[replica.index]]


def every(replica: Replica, weight: nn.Parameter, optimizer: DistributedOptimizer, session: Session) -> None:
    for batch in session.batches(iter(batches(replica))):
        optimizer.zero_grad()
        (weight * batch).mean().backward()
        optimizer.step(every=2)


def by_hand(
    replica: Replica, weight: nn.Parameter, optimizer: DistributedOptimizer, session: Session
) -> None:
    for batch in batches(replica):
        optimizer.zero_grad()
        (weight * batch).mean().backward()
        optimizer.step(every=2, weight=len(batch))


def no_sync(
    replica: Replica, weight: nn.Parameter, optimizer: DistributedOptimizer, session: Session
) -> None:
    optimizer.zero_grad()
    for place, batch in enumerate(session.batches(iter(batches(replica)))):
        if place == 0:
            with optimizer.no_sync():
                ((weight * batch).mean() / 2).backward()
        else:
            ((weight * batch).mean() / 2).backward()
            optimizer.step()


@pytest.mark.parametrize("loop", [every, by_hand, no_sync])
def test_what_is_accumulated_weighs_as_much_as_all_of_its_parts(loop: Loop) -> None:
    assert run("queue", on_one_number(loop), mode=Sync(weighted=True)) == [(None, -1.5)] * 2


def test_what_was_given_up_weighs_nothing() -> None:
    def loop(
        replica: Replica, weight: nn.Parameter, optimizer: DistributedOptimizer, session: Session
    ) -> None:
        weight.grad = torch.full((1,), 1.0)
        optimizer.step(every=2, weight=1000 * replica.index)
        optimizer.skip()
        weight.grad = torch.full((1,), replica.index + 1.0)
        optimizer.step(weight=1)

    assert run("queue", on_one_number(loop), mode=Sync(weighted=True)) == [(None, -1.5)] * 2


@pytest.mark.parametrize("empty", [{0}, {0, 1}])
@pytest.mark.parametrize("way", ["queue", "memory"])
def test_a_gradient_of_no_examples_is_skipped(way: Way, empty: set[int]) -> None:
    def loop(
        replica: Replica, weight: nn.Parameter, optimizer: DistributedOptimizer, session: Session
    ) -> list[Status]:
        statuses = []
        for batch in session.batches(iter([torch.ones(0 if replica.index in empty else 4), torch.ones(4)])):
            optimizer.zero_grad()
            (weight * batch).mean().backward()
            statuses.append(optimizer.step().status)
        return statuses

    results = run(way, on_one_number(loop), mode=Sync(weighted=True))
    assert [value for _, value in results] == [-2.0 if len(empty) == 1 else -1.0] * 2
    first = ["skipped" if worker in empty else "applied" for worker in range(2)]
    assert [statuses for statuses, _ in results] == [[status, "applied"] for status in first]


@pytest.mark.parametrize("weight", [0.0, 1e-320])
def test_a_gradient_that_weighs_nothing_is_skipped(weight: float) -> None:
    def loop(_: Replica, number: nn.Parameter, optimizer: DistributedOptimizer, __: Session) -> Status:
        number.grad = torch.ones(1)
        return optimizer.step(weight=weight).status

    assert run("queue", on_one_number(loop), mode=Sync(weighted=True)) == [("skipped", 0.0)] * 2


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 1e30])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    def loop(_: Replica, __: nn.Parameter, optimizer: DistributedOptimizer, ___: Session) -> None:
        optimizer.step(weight=weight)

    with pytest.raises(ConfigError, match=r"step\(weight\): expected a number from 0 to"):
        run("alone", on_one_number(loop))
