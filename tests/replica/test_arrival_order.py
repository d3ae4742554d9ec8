"""The same bits whatever the order in which gradients arrive, at each server an order of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import permutations

import pytest
import torch
from test_equivalence import OPTIMIZERS, Branches, branch_loss
from trainings import Case, assert_identical, train

from argosy.entry import Replica
from argosy.modes import Sync
from argosy.testing import Lane, LocalCluster, Order

CASE = Case(Branches, OPTIMIZERS["adam"], branch_loss, clip_norm=0.5, dtype=torch.float64, steps=20)
FLOAT32 = Case(optimizer=OPTIMIZERS["adam"], dtype=torch.float32, steps=20)


LANES: tuple[Lane, Lane] = ("queue", "memory")


def always(order: Sequence[int]) -> Order:
    return lambda server, turn: order


def shuffled(seed: int, workers: int) -> Order:
    """Another order at every server and turn."""

    def order(server: int, turn: int) -> Sequence[int]:
        return random.Random(f"{seed}/{server}/{turn}").sample(range(workers), workers)

    return order


def test_every_order_of_three() -> None:
    states = [train(FLOAT32, 3, 2, always(order), lane="memory")[0] for order in permutations(range(3))]
    assert_identical(states)


@pytest.mark.parametrize("case", [CASE, FLOAT32], ids=["branches", "float32"])
@pytest.mark.parametrize(("workers", "servers"), [(2, 2), (3, 1), (3, 3), (4, 2)])
def test_shuffled_orders(case: Case, workers: int, servers: int) -> None:
    states = [train(case, workers, servers, shuffled(seed, workers), LANES[seed % 2])[0] for seed in range(4)]
    assert_identical([*states, train(case, workers, servers)[0]])


def test_the_order_would_matter() -> None:
    """These gradients are such that adding them in another order gives other bits: or nothing is shown."""
    parts = torch.tensor([1e8, 1.0, -1e8, 1.0])
    sums = {sum(parts[list(order)].tolist(), torch.tensor(0.0)).item() for order in permutations(range(4))}
    assert len(sums) > 1


@pytest.mark.parametrize("workers", [3, 4])
def test_gradients_whose_sum_depends_on_the_order(workers: int) -> None:
    values = (1e8, 1.0, -1e8, 1.0)

    def final(order: Order) -> float:
        weights = [torch.zeros(1, requires_grad=True) for _ in range(workers)]

        def program(replica: Replica) -> None:
            weight = weights[replica.index]
            optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
            weight.grad = torch.full((1,), values[replica.index])
            optimizer.step()

        LocalCluster(1, workers, Sync(), order=order).run(program)
        return weights[0].item()

    assert len({final(always(order)) for order in permutations(range(workers))}) == 1
