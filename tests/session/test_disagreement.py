"""Workers that do not agree on the model, the mode or the hyperparameters: who is told, and what."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from one_number import Bench, one_weight
from torch import nn

from argosy.entry import Replica
from argosy.errors import ConfigError, JobFailed, ModelMismatch
from argosy.modes import Async, Mode, Sync
from argosy.testing import LocalCluster


def refused(*models: Callable[[], nn.Module]) -> dict[str, BaseException]:
    """What comes of workers with these models."""
    made = [model() for model in models]

    def program(replica: Replica) -> None:
        model = made[replica.index]
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        with replica.session(model, optimizer):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()

    return LocalCluster(2, len(made), Sync()).run_to_the_end(program).errors


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (lambda: nn.Linear(3, 2), ["weight float32[2, 4]", "weight float32[2, 3]"]),
        (lambda: nn.Linear(4, 2).double(), ["weight float32[2, 4]", "weight float64[2, 4]"]),
        (lambda: nn.Sequential(nn.Linear(4, 2)), ["weight float32[2, 4]", "0.weight float32[2, 4]"]),
        (lambda: nn.Linear(4, 2, bias=False), ["bias float32[2]"]),
        (lambda: nn.Bilinear(4, 1, 2), ["weight"]),
        (lambda: Wider(), ["extra float32[7]"]),
    ],
    ids=["shape", "dtype", "name", "fewer", "another", "more"],
)
def test_a_model_that_differs_is_refused(other: Callable[[], nn.Module], names: list[str]) -> None:
    errors = refused(lambda: nn.Linear(4, 2), other)
    error = errors["/job:worker/task:1"]
    assert isinstance(error, ModelMismatch)
    for name in names:
        assert name in str(error)
    assert "\n" not in str(error)
    assert isinstance(errors["/job:worker/task:0"], JobFailed)


class Wider(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 2)
        self.extra = nn.Parameter(torch.zeros(7))


@pytest.mark.parametrize(
    ("mode", "other"),
    [(Sync(), Async()), (Async(), Sync()), (Async(), Async(3)), (Sync(1), Sync(2))],
    ids=str,
)
def test_modes_must_agree(mode: Mode, other: Mode) -> None:
    cluster = LocalCluster(1, 2, mode)

    def program(replica: Replica) -> None:
        with Bench(replica).session:
            replica.barrier()

    cluster.start(0, program)
    cluster.start(1, program, mode=other)
    error = cluster.finish().errors["/job:worker/task:1"]
    assert isinstance(error, ConfigError)
    assert error.field == "mode"
    assert str(mode) in str(error)
    assert str(other) in str(error)


def test_hyperparameters_must_agree_in_a_synchronous_step() -> None:
    def program(replica: Replica) -> None:
        model = nn.Linear(2, 2)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1 + 0.2 * replica.index))
        with replica.session(model, optimizer):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    errors = LocalCluster(2, 2, Sync()).run_to_the_end(program).errors
    for worker in (0, 1):
        message = str(errors[f"/job:worker/task:{worker}"])
        for part in (
            "lr of group 0",
            "/job:worker/task:1",
            "/job:worker/task:0",
            "0.1",
            "0.30000000000000004",
        ):
            assert part in message


def test_hyperparameters_are_each_workers_own_in_async() -> None:
    def program(replica: Replica) -> float:
        model = one_weight()
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0 + replica.index))
        with replica.session(model, optimizer, last_step=2):
            model.weight.grad = torch.full((1, 1), -1.0)
            optimizer.step()
            replica.barrier()
        return model.weight.item()

    assert LocalCluster(2, 2, Async()).run(program) == [3.0, 3.0]
