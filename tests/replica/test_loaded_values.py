"""What a script loads into its model inside a session: it stays, or is refused; never undone in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ring_trainings import in_ring
from torch import nn

from argosy.cluster.discover import discover
from argosy.entry import Replica
from argosy.errors import CallError, ConfigError
from argosy.modes import Async, Mode, Ring, Sync
from argosy.testing import Lane, LocalCluster

Program = Callable[[Replica], Any]
MODES = [Sync(), Async(), Ring()]


def kind(mode: object) -> str:
    return type(mode).__name__


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2), nn.BatchNorm1d(2))


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(model: nn.Module, best: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, best[name]) for name, value in model.state_dict().items())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 2)).sum().backward()
        optimizer.step()


def run(mode: Mode, program: Program, lane: Lane = "queue") -> list[Any]:
    if isinstance(mode, Ring):
        return in_ring(2, program)
    return LocalCluster(2, 2, mode, lane=lane).run(program)


@pytest.mark.parametrize("lane", ["queue", "memory"])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("mode", MODES, ids=kind)
def test_the_best_state_that_is_loaded_before_the_end_stays(mode: Mode, asks: bool, lane: Lane) -> None:
    def program(replica: Replica) -> bool:
        model = Normed()
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer):
            best = state(model)
            train(model, optimizer)
            replica.barrier()
            model.load_state_dict(best)
            if asks:
                assert set(optimizer.state_dict()) == {"state", "param_groups"}
                assert same(model, best)
        return same(model, best) and all(p.requires_grad for p in model.parameters())

    assert run(mode, program, lane) == [True, True]


@pytest.mark.parametrize("lane", ["queue", "memory"])
def test_without_a_load_the_end_brings_the_final_parameters(lane: Lane) -> None:
    def program(replica: Replica) -> float:
        model = nn.Linear(1, 1, bias=False)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        with replica.session(model, optimizer):
            model.weight.grad = torch.ones(1, 1)
            optimizer.step()
            replica.barrier()
        return model.weight.item()

    first, second = run(Async(), program, lane)
    assert first == second


@pytest.mark.parametrize("mode", [Sync(), Async()], ids=kind)
@pytest.mark.parametrize("how", ["step", "skip", "averaged"])
def test_with_servers_a_load_before_another_step_is_refused(mode: Mode, how: str) -> None:
    def program(replica: Replica) -> None:
        model = Normed()
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer, average=0.9) as session:
            best = state(model)
            train(model, optimizer)
            model.load_state_dict(best)
            if how == "step":
                train(model, optimizer)
            elif how == "skip":
                optimizer.skip()
            else:
                with session.averaged():
                    pass

    error = LocalCluster(1, 1, mode).run_to_the_end(program).errors["/job:worker/task:0"]
    assert isinstance(error, CallError)
    assert str(error).startswith("test_loaded_values.py:")
    assert "would undo it" in str(error)


@pytest.mark.parametrize("mode", MODES, ids=kind)
def test_values_that_are_put_in_and_taken_out_again_do_no_harm(mode: Mode) -> None:
    """Averages of one's own for an evaluation."""

    def program(replica: Replica) -> str:
        model = Normed()
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer):
            other = {name: value * 2 for name, value in state(model).items()}
            train(model, optimizer)
            own = state(model)
            model.load_state_dict(other)
            model.load_state_dict(own)
            train(model, optimizer)
        return optimizer.verdict.status

    assert run(mode, program) == ["pulled", "pulled"]


def test_in_the_ring_all_may_load_the_same_and_go_on() -> None:
    def program(replica: Replica) -> float:
        model = nn.Linear(1, 1, bias=False)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        with replica.session(model, optimizer):
            for _ in range(3):
                model.load_state_dict({"weight": torch.full((1, 1), 5.0)})
                optimizer.zero_grad()
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
        return model.weight.item()

    assert in_ring(2, program) == [4.0, 4.0]


@pytest.mark.parametrize("who", ["one", "each"])
def test_in_the_ring_other_values_are_refused_on_all(who: str) -> None:
    raised: dict[int, BaseException] = {}

    def program(replica: Replica) -> None:
        model = nn.Linear(1, 1, bias=False)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        try:
            with replica.session(model, optimizer):
                for step in range(3):
                    if step == 1 and (who == "each" or replica.index == 1):
                        model.load_state_dict({"weight": torch.full((1, 1), 5.0 + replica.index)})
                    optimizer.zero_grad()
                    model(torch.ones(1, 1)).sum().backward()
                    optimizer.step()
        except ConfigError as error:
            raised[replica.index] = error

    in_ring(2, program)
    assert sorted(raised) == [0, 1]
    assert all("load the same on every worker" in str(error) for error in raised.values())


def test_other_parameters_in_the_model_are_refused() -> None:
    replica = Replica(discover({}, {}), None)
    model = nn.Linear(1, 1)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
    with replica.session(model, optimizer):
        model.load_state_dict(state(model), assign=True)
        with pytest.raises(CallError, match="assign=True"):
            optimizer.step()


# --- without a session ------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", MODES, ids=kind)
@pytest.mark.parametrize("layer", ["BatchNorm", "affine=False", "LayerNorm"])
def test_running_statistics_without_a_session_are_told_once(
    mode: Mode, layer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def program(replica: Replica) -> None:
        norm: nn.Module = nn.LayerNorm(2)
        if layer != "LayerNorm":
            norm = nn.BatchNorm1d(2, affine=layer == "BatchNorm")
        model = nn.Sequential(nn.Linear(2, 2), norm)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        train(model, optimizer)

    run(mode, program)
    said = [line for line in capsys.readouterr().err.splitlines() if "running statistics" in line]
    assert len(said) == (layer != "LayerNorm")
    assert all("replica.session(model, optimizer)" in line for line in said)
