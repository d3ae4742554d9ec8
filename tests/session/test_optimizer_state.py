"""The optimizer of a session: its state in torch's format, its hyperparameters from script or checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_trainings import ONE_AT_A_TIME
from torch import nn

from argosy.cluster.discover import discover
from argosy.entry import Replica
from argosy.errors import ConfigError
from argosy.modes import Sync
from argosy.store.placement import Split
from argosy.testing import LocalCluster


@pytest.mark.parametrize("lane", ["queue", "memory"])
@pytest.mark.parametrize("placement", [None, Split(2)])
def test_the_state_of_an_optimizer_is_in_torchs_format(lane: Any, placement: Any) -> None:
    def program(replica: Replica) -> dict[str, Any]:
        with ONE_AT_A_TIME:
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
        optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=0.1), placement=placement)
        with replica.session(model, optimizer, last_step=5) as session:
            for _ in session.batches(range(9)):
                optimizer.zero_grad()
                model(torch.full((3, 5), session.global_step + 1.0)).sum().backward()
                optimizer.step()
            before = [parameter.detach().clone() for parameter in model.parameters()]
            state = optimizer.state_dict()
            assert all(map(torch.equal, before, model.parameters()))
        return state

    inner = torch.optim.Adam([nn.Parameter(torch.zeros(size)) for size in ((4, 5), (4,), (2, 4), (2,))])
    (theirs,) = LocalCluster(2, 1, Sync(), lane=lane).run(program)
    (alone_,) = LocalCluster(1, 1, Sync(), lane=lane).run(program)
    for state in (theirs, alone_):
        inner.load_state_dict(state)
    assert theirs["state"].keys() == {0, 1, 2, 3}
    for number, kept in theirs["state"].items():
        assert kept.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert kept["step"] == 5
        assert kept["exp_avg"].shape == inner.param_groups[0]["params"][number].shape
        assert torch.allclose(kept["exp_avg"], alone_["state"][number]["exp_avg"])
        assert kept["exp_avg"].abs().sum() > 0


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_parameter_without_elements_has_a_state_as_well(empty: int, tmp_path: Path) -> None:
    """Wherever it lies among the others, also after the training was resumed."""

    def program(replica: Replica) -> tuple[dict[str, Any], dict[str, Any]]:
        sizes = [0 if place == empty else 3 for place in range(3)]
        model = nn.ParameterList([nn.Parameter(torch.ones(size)) for size in sizes])
        plain = torch.optim.Adam(copy.deepcopy(model).parameters())
        optimizer = replica.distribute(torch.optim.Adam(model.parameters()), placement=lambda _: 0)
        with replica.session(model, optimizer, last_step=steps, directory=tmp_path) as session:
            for _ in session.batches(range(9)):
                for parameter in model:
                    parameter.grad = torch.ones_like(parameter)
                optimizer.step()
            state = optimizer.state_dict()
        for _ in range(steps):
            for parameter in plain.param_groups[0]["params"]:
                parameter.grad = torch.ones_like(parameter)
            plain.step()
        return state, plain.state_dict()

    for steps in (3, 5):  # noqa: B007  # the program reads it
        ((mine, theirs),) = LocalCluster(2, 1, Sync()).run(program)
        assert mine["state"].keys() == theirs["state"].keys() == {0, 1, 2}
        for number, kept in theirs["state"].items():
            for name, value in kept.items():
                torch.testing.assert_close(mine["state"][number][name], value)


def test_after_the_session_the_state_is_gone_and_it_says_so() -> None:
    def program(replica: Replica) -> str:
        model = nn.Linear(1, 1)
        optimizer = replica.distribute(torch.optim.Adam(model.parameters()))
        with replica.session(model, optimizer, last_step=0):
            pass
        for late in (optimizer.state_dict, optimizer.step):
            with pytest.raises(ConfigError, match=r"session that goes on, got one that has ended.*inside"):
                late()
        return "done"

    assert LocalCluster(2, 1, Sync(), lane="memory").run(program) == ["done"]


def test_the_script_or_the_checkpoint_has_the_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rate(scripted: float, **options: Any) -> float:
        def program(replica: Replica) -> float:
            model = nn.Linear(1, 1)
            optimizer = replica.distribute(
                torch.optim.Adam(model.parameters(), lr=scripted, betas=(0.5, 0.9))
            )
            with replica.session(model, optimizer, directory=tmp_path, last_step=1, **options) as session:
                for _ in session.batches(range(1)):
                    model(torch.ones(1, 1)).backward()
                    optimizer.step()
                assert optimizer.param_groups[0]["betas"] == (0.5, 0.9)
                return float(optimizer.param_groups[0]["lr"])

        return float(LocalCluster(1, 1).run(program)[0])

    assert rate(0.25) == 0.25
    assert rate(0.5) == 0.25
    assert rate(0.5, hyperparameters="script") == 0.5


def _model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2), nn.Linear(2, 2))


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for number in range(first, last):
        optimizer.zero_grad()
        inputs = torch.full((3, 5), number + 1.0)
        model(inputs).square().mean().backward()
        optimizer.step()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, dampening=0.5),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
}


@pytest.mark.parametrize("before", [True, False], ids=["torch's", "ours"])
@pytest.mark.parametrize("placement", [None, Split(2)])
@pytest.mark.parametrize("lane", ["queue", "memory"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_was_loaded_goes_on_where_it_was(
    name: str, lane: Any, placement: Any, before: bool
) -> None:
    expected = _model()
    inner = OPTIMIZERS[name](expected.parameters())
    _steps(expected, inner, 0, 3)
    saved = copy.deepcopy((expected.state_dict(), inner.state_dict()))
    _steps(expected, inner, 3, 7)

    def program(replica: Replica) -> nn.Module:
        with ONE_AT_A_TIME:
            model = _model()
        model.load_state_dict(saved[0])
        optimizer = OPTIMIZERS[name](model.parameters())
        if before:
            optimizer.load_state_dict(saved[1])
        distributed = replica.distribute(optimizer, placement=placement)
        if not before:
            distributed.load_state_dict(saved[1])
        with replica.session(model, distributed, last_step=4) as session:
            for _ in session.batches(range(4)):
                _steps(model, distributed, session.global_step + 3, session.global_step + 4)
        return model

    for model in LocalCluster(2, 2, Sync(), lane=lane).run(program):
        for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)


def test_parameters_without_a_state_begin_anew_beside_others() -> None:
    def start() -> tuple[nn.Sequential, torch.optim.Optimizer]:
        model = _model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        model[1].requires_grad_(False)  # it has no gradient, and so no state
        _steps(model, optimizer, 0, 3)
        model[1].requires_grad_(True)
        return model, optimizer

    expected, plain = start()
    _steps(expected, plain, 3, 7)

    def program(replica: Replica) -> nn.Module:
        with ONE_AT_A_TIME:
            model, inner = start()
        optimizer = replica.distribute(inner)
        with replica.session(model, optimizer, last_step=4) as session:
            for _ in session.batches(range(4)):
                _steps(model, optimizer, session.global_step + 3, session.global_step + 4)
        return model

    (found,) = LocalCluster(2, 1, Sync(), lane="memory").run(program)
    for mine, theirs in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_in_the_middle_of_a_training_with_servers_nothing_is_loaded() -> None:
    def program(replica: Replica) -> str:
        model = nn.Linear(1, 1)
        optimizer = replica.distribute(torch.optim.Adam(model.parameters()))
        state = torch.optim.Adam(model.parameters()).state_dict()
        refused = pytest.raises(ConfigError, match=r"load_state_dict\(\): the session has begun")
        with replica.session(model, optimizer, last_step=0), refused:
            optimizer.load_state_dict(state)
        return "done"

    assert LocalCluster(2, 1, Sync(), lane="memory").run(program) == ["done"]


def test_a_cluster_of_one_loads_it_at_any_time() -> None:
    model = nn.Linear(2, 1)
    inner = torch.optim.Adam(model.parameters(), lr=0.5)
    optimizer = Replica(discover({}, {}), None).distribute(inner)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0]["step"] += 5
    state["param_groups"][0]["lr"] = 0.25
    optimizer.load_state_dict(state)
    optimizer.step()
    assert inner.state[model.weight]["step"] == 7
    assert optimizer.param_groups is inner.param_groups
    assert inner.param_groups[0]["lr"] == 0.25


def test_adagrad_has_a_state_for_what_was_never_updated() -> None:
    """Torch's makes it from the start, and looks for it at the first gradient."""

    def program(replica: Replica) -> dict[str, Any]:
        model = nn.ParameterList([torch.zeros(2), torch.zeros(3)])
        inner = torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.25)
        optimizer = replica.distribute(inner)
        with replica.session(model, optimizer):
            model[0].grad = torch.ones(2)
            optimizer.step()
            return optimizer.state_dict()

    (state,) = LocalCluster(2, 1, Sync()).run(program)
    assert [float(state["state"][number]["step"]) for number in (0, 1)] == [1.0, 0.0]
    assert state["state"][1]["sum"].tolist() == [0.25] * 3
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))]
    plain = torch.optim.Adagrad(parameters)
    plain.load_state_dict(state)
    parameters[1].grad = torch.ones(3)
    plain.step()
