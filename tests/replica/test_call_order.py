"""Calls at the wrong moment, or with the wrong model: refused, with the script's line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ring_trainings import in_ring
from torch import Tensor, nn
from trainings import Net, mean_loss

from argosy.cluster.discover import discover
from argosy.entry import Replica
from argosy.errors import CallError
from argosy.modes import Async, Sync
from argosy.testing import LocalCluster

Program = Callable[[Replica], object]


def alone(program: Program) -> None:
    program(Replica(discover({}, {}), None))


def served(program: Program) -> None:
    errors = LocalCluster(1, 1, Sync()).run_to_the_end(program).errors
    if "/job:worker/task:0" in errors:
        raise errors["/job:worker/task:0"]


def ring(program: Program) -> None:
    in_ring(1, program)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def distributed_twice(replica: Replica) -> None:
    replica.distribute(replica.distribute(sgd(nn.Linear(2, 2))))


def second_optimizer(replica: Replica) -> None:
    replica.distribute(sgd(nn.Linear(2, 2)))
    replica.distribute(sgd(nn.Linear(2, 2)))


def nested(replica: Replica) -> None:
    model = nn.Linear(2, 2)
    optimizer = replica.distribute(sgd(model))
    with replica.session(model, optimizer), replica.session(model, optimizer):
        pass


def session_after_a_step(replica: Replica) -> None:
    model = nn.Linear(2, 2)
    optimizer = replica.distribute(sgd(model))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with replica.session(model, optimizer):
        pass


def second_session(replica: Replica) -> None:
    model = nn.Linear(2, 2)
    optimizer = replica.distribute(sgd(model))
    for _ in range(2):
        with replica.session(model, optimizer):
            pass


def rebuilt(replica: Replica) -> None:
    model = nn.Linear(2, 2)
    optimizer = replica.distribute(sgd(model))
    model = nn.Linear(2, 2)
    replica.session(model, optimizer)


@pytest.mark.parametrize(
    ("program", "how", "says"),
    [
        (distributed_twice, alone, "distributed already"),
        (distributed_twice, ring, "distributed already"),
        (distributed_twice, served, "distributed already"),
        (
            second_optimizer,
            served,
            "the servers train one model, and it was distributed at test_call_order.py:",
        ),
        (nested, alone, "in a session already, begun at test_call_order.py:"),
        (nested, ring, "in a session already, begun at test_call_order.py:"),
        (nested, served, "in a session already, begun at test_call_order.py:"),
        (session_after_a_step, ring, "step() was called before it"),
        (session_after_a_step, served, "step() was called before it"),
        (second_session, ring, "the job ended with the session at test_call_order.py:"),
        (second_session, served, "the job ended with the session at test_call_order.py:"),
        (rebuilt, alone, "none of the model's 2 trainable parameters is in the optimizer"),
        (rebuilt, ring, "none of the model's 2 trainable parameters is in the optimizer"),
        (rebuilt, served, "none of the model's 2 trainable parameters is in the optimizer"),
    ],
)
def test_it_is_refused_with_the_scripts_line(
    program: Program, how: Callable[[Program], None], says: str
) -> None:
    with pytest.raises(CallError) as caught:
        how(program)
    assert str(caught.value).startswith("test_call_order.py:")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_alone_a_session_may_follow_another() -> None:
    alone(second_session)
    alone(session_after_a_step)


@pytest.mark.parametrize(
    ("rest", "note"),
    [
        ("frozen", ""),
        ("missing", "2 of the model's 4 trainable parameters are not in the optimizer, and stay as they are"),
    ],
)
def test_parameters_that_the_optimizer_lacks(
    rest: str, note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def program(replica: Replica) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[0].requires_grad_(rest != "frozen")
        centers = nn.Parameter(torch.zeros(3))  # of a loss: no parameter of the model
        optimizer = replica.distribute(torch.optim.SGD([*model[1].parameters(), centers], lr=0.1))
        with replica.session(model, optimizer):
            pass

    LocalCluster(1, 2, Async()).run(program)
    said = [line for line in capsys.readouterr().err.splitlines() if "trainable" in line]
    assert len(said) == bool(note)
    assert all(note in line and "0.weight" in line for line in said)


@pytest.mark.parametrize("rebuilt", [True, False])
def test_a_first_step_without_any_gradient_is_told_once(
    rebuilt: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def program(replica: Replica) -> None:
        model = nn.Linear(2, 2)
        optimizer = replica.distribute(sgd(model))
        model = nn.Linear(2, 2) if rebuilt else model
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    LocalCluster(1, 2, Async()).run(program)
    said = [line for line in capsys.readouterr().err.splitlines() if "has a gradient" in line]
    assert len(said) == rebuilt
    assert all("test_call_order.py:" in line for line in said)


# --- two optimizers where each replica has its own --------------------------------------------------------
def train_two(
    models: list[nn.Module], optimizers: list[torch.optim.Optimizer], loss: Callable[[nn.Module, int], Tensor]
) -> list[Tensor]:
    for step in range(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for place, model in enumerate(models):
            (loss(model, step) * (1 + place)).backward()
        for optimizer in optimizers:
            optimizer.step()
    return [parameter.detach().clone() for model in models for parameter in model.parameters()]


def make_two(seed: int) -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
    torch.manual_seed(seed)
    models: list[nn.Module] = [Net().double(), Net().double()]
    return models, [torch.optim.Adam(models[0].parameters(), 0.01), sgd(models[1])]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("session", [True, False])
def test_two_optimizers_are_two_trainings_alone_and_in_the_ring(workers: int, session: bool) -> None:
    made = [make_two(7) for _ in range(workers)]

    def program(replica: Replica) -> list[Tensor]:
        models, inner = made[replica.index]
        optimizers = [replica.distribute(each) for each in inner]

        def train() -> list[Tensor]:
            return train_two(
                models, list(optimizers), lambda model, step: mean_loss(model, step, replica.index)
            )

        if not session:
            return train()
        with replica.session(models[0], optimizers[0]):
            return train()

    results = [program(Replica(discover({}, {}), None))] if workers == 1 else in_ring(workers, program)
    models, plain = make_two(7)

    def joined(model: nn.Module, step: int) -> Tensor:
        return torch.stack([mean_loss(model, step, worker) for worker in range(workers)]).mean()

    expected = train_two(models, plain, joined)
    for result in results:
        for mine, right in zip(result, expected, strict=True):
            assert torch.allclose(mine, right, rtol=1e-9, atol=1e-12)
