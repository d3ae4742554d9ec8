"""A training that is saved in one way of working together goes on in any other, as one process would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn
from ways import WAYS, Way, run

import argosy
from argosy.checkpoint import folder
from argosy.checkpoint.index import read
from argosy.entry import Replica
from argosy.errors import ConfigError

# On one host servers save and restore as they do over the network.
PAIRS = [pytest.param(*pair, id=" to ".join(pair)) for pair in product(WAYS[:3], WAYS[:3])]


def number(value: float = 0.0) -> nn.Parameter:
    return nn.Parameter(torch.tensor([value]))


def adding_up(
    directory: Path, last_step: int, optimizer: Callable[[nn.Parameter], torch.optim.Optimizer]
) -> Callable[[Replica], float]:
    """Trains one number, whose gradient is always 1."""

    def program(replica: Replica) -> float:
        weight = number()
        model = nn.ParameterList([weight])
        distributed = replica.distribute(optimizer(weight))
        with replica.session(model, distributed, last_step=last_step, directory=directory) as session:
            for _ in session.batches(range(100)):
                distributed.zero_grad()
                weight.sum().backward()
                distributed.step()
        return weight.item()

    return program


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_momentum_goes_on(first: Way, second: Way, tmp_path: Path) -> None:
    """SGD counts no updates: what has momentum has been updated."""

    def optimizer(weight: nn.Parameter) -> torch.optim.Optimizer:
        return torch.optim.SGD([weight], lr=1.0, momentum=0.5)

    run(first, adding_up(tmp_path, 2, optimizer))
    # The momentum is 1, then 1.5, then 1.75.
    assert run(second, adding_up(tmp_path, 3, optimizer))[0] == -4.25


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.5),
    "SGD with dampening": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.5, dampening=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.5, lr_decay=0.5),
}


def unevenly(parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer, step: int) -> None:
    """One step. The first parameter is used in all, the second from step 2 on, the third from step 5 on."""
    optimizer.zero_grad()
    used = parameters[: 1 + (step >= 2) + (step >= 5)]
    torch.stack([(parameter * (step + 1)).sum() for parameter in used]).sum().backward()
    optimizer.step()


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.arange(4.0) + 10 * place) for place in range(3)]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_each_parameter_goes_on_with_its_own_number_of_updates(
    first: Way, second: Way, name: str, tmp_path: Path
) -> None:
    """On servers all three lie in one flat block, of which every stretch has its own bias correction."""
    expected = parameters()
    plain = OPTIMIZERS[name](expected)
    for step in range(8):
        unevenly(expected, plain, step)

    def program(last_step: int) -> Callable[[Replica], list[torch.Tensor]]:
        def training(replica: Replica) -> list[torch.Tensor]:
            mine = parameters()
            optimizer = replica.distribute(OPTIMIZERS[name](mine), placement=lambda _: 0)
            model = nn.ParameterList(mine)
            with replica.session(model, optimizer, last_step=last_step, directory=tmp_path) as session:
                for _ in session.batches(range(100)):
                    unevenly(mine, optimizer, session.global_step)
            return [parameter.detach().clone() for parameter in mine]

        return training

    run(first, program(4))
    for mine in run(second, program(8)):
        for one, other in zip(mine, expected, strict=True):
            torch.testing.assert_close(one, other.detach())


class Growing(nn.Module):
    """Two numbers; the second one is trained from some step on."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late = number(), number(100.0)


def growing(
    last_step: int,
    directory: Path | None,
    adds_at: int,
    *,
    inner_adds: bool = False,
    average: float | None = None,
) -> Callable[[Replica], tuple[list[float], list[float], dict[str, float]]]:
    """The losses of the steps, the averages at the end, and the hyperparameters of the group that came later.

    The loss is the sum of the two numbers, so that a forward pass with old values is seen at once.
    """

    def program(replica: Replica) -> tuple[list[float], list[float], dict[str, float]]:
        model = Growing()
        plain = torch.optim.SGD([model.early], lr=1.0, momentum=0.5)
        optimizer = replica.distribute(plain)
        adder = plain if inner_adds else optimizer
        losses, averages = [], list[float]()
        with replica.session(
            model, optimizer, last_step=last_step, directory=directory, average=average
        ) as session:
            for _ in session.batches(range(100)):
                if session.global_step >= adds_at and len(optimizer.param_groups) == 1:
                    adder.add_param_group({"params": [model.late], "lr": 2.0})
                if session.global_step == adds_at + 1:
                    optimizer.param_groups[1]["lr"] = 4.0
                optimizer.zero_grad()
                loss = model.early.sum() + model.late.sum()
                losses.append(loss.item())
                loss.backward()
                optimizer.step()
            if average is not None:
                with session.averaged():
                    averages = [model.early.item(), model.late.item()]
            return losses, averages, {"lr": optimizer.param_groups[-1]["lr"]}

    return program


@pytest.mark.parametrize("inner_adds", [False, True], ids=["", "added to torch's own"])
@pytest.mark.parametrize("way", WAYS)
def test_a_group_that_was_added_in_the_middle_is_restored_when_it_is_added_again(
    way: Way, inner_adds: bool, tmp_path: Path
) -> None:
    """Its values, momentum, learning rate and averages, before the forward pass that follows."""
    whole = run("alone", growing(8, None, 2, inner_adds=inner_adds, average=0.9))[0]
    run(way, growing(5, tmp_path, 2, inner_adds=inner_adds, average=0.9))
    for losses, averages, group in run(way, growing(8, tmp_path, 2, inner_adds=inner_adds, average=0.9)):
        assert losses == pytest.approx(whole[0][5:])
        assert averages == pytest.approx(whole[1])
        assert group == whole[2] == {"lr": 4.0}


@pytest.mark.parametrize("saves", [False, True], ids=["", "with a directory"])
@pytest.mark.parametrize("way", WAYS)
def test_averages_of_a_group_that_comes_later_are_kept_too(way: Way, saves: bool, tmp_path: Path) -> None:
    def program(replica: Replica) -> tuple[list[float], list[float]]:
        model = Growing()
        optimizer = replica.distribute(torch.optim.SGD([model.early], lr=1.0))
        averages = [0.0, 100.0]
        directory = tmp_path if saves else None
        with replica.session(model, optimizer, last_step=6, directory=directory, average=0.9) as session:
            for _ in session.batches(range(100)):
                if session.global_step == 2:
                    optimizer.add_param_group({"params": [model.late]})
                optimizer.zero_grad()
                (model.early + model.late).sum().backward()
                optimizer.step()
                share = 1 - min(0.9, (1 + session.global_step) / (10 + session.global_step))
                for place, value in enumerate((model.early.item(), model.late.item())):
                    averages[place] += share * (value - averages[place])
            with session.averaged():
                return [model.early.item(), model.late.item()], averages

    for theirs, mine in run(way, program):
        assert theirs == pytest.approx(mine)


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_what_is_trained_later_has_its_saved_value_before_that(
    first: Way, second: Way, tmp_path: Path
) -> None:
    run(first, growing(5, tmp_path, 2))
    # Rates of 2, 4 and 4, and a momentum of 1, 1.5 and 1.75.
    assert argosy.load(tmp_path)["late"].item() == 100 - 15

    def value_at_the_start(replica: Replica) -> float:
        model = Growing()
        optimizer = replica.distribute(torch.optim.SGD([model.early], lr=1.0, momentum=0.5))
        with replica.session(model, optimizer, last_step=5, directory=tmp_path):
            return model.late.item()

    assert run(second, value_at_the_start) == [85.0] * (1 if second == "alone" else 2)


@pytest.mark.parametrize("last_step", [0, 5])
def test_a_ring_whose_chief_has_nothing_left_to_save_ends_well(last_step: int, tmp_path: Path) -> None:
    """The chief leaves, and takes its notes along, while the others still give it their state."""
    chief_left = threading.Event()

    def program(replica: Replica) -> int:
        weight = number()
        optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
        session = replica.session(
            nn.ParameterList([weight]), optimizer, last_step=last_step, directory=tmp_path, save_every=5
        )
        with session:
            for _ in session.batches(range(100)):
                weight.grad = torch.ones(1)
                optimizer.step()
            if replica.index:
                assert chief_left.wait(20)
        chief_left.set()
        return session.global_step

    assert run("ring", program) == [last_step] * 2
    assert not list(tmp_path.glob(".ring*"))


@pytest.mark.parametrize("kept", [True, False], ids=["directory", "no directory"])
@pytest.mark.parametrize("way", WAYS)
def test_what_the_chief_wants_all_do_after_the_same_step(way: Way, kept: bool, tmp_path: Path) -> None:
    directory = tmp_path if kept else None

    def program(replica: Replica) -> tuple[int, float]:
        weight = number()
        optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
        with replica.session(nn.ParameterList([weight]), optimizer, directory=directory) as session:
            for _ in session.batches(range(100)):
                weight.grad = torch.ones(1)
                optimizer.step()
                if replica.is_chief and session.global_step == 2:
                    session.save()
                if replica.is_chief and session.global_step == 6:
                    session.stop()
        return session.global_step, weight.item()

    ended = run(way, program)
    if way == "alone":
        assert ended == [(6, -6.0)]
    elif way == "ring":
        assert ended == [(7, -7.0)] * 2  # the others hear of it in their next step
    else:
        assert ended[1] == (7, -7.0)
    if kept:
        saved = folder.saved(tmp_path)
        assert [each.step for each in saved] == [3, 6 if way == "alone" else 7]
        assert all(read(saved[0].path).replicas[worker] for worker in range(len(ended)))


def test_a_ring_whose_replicas_see_other_directories_says_so(tmp_path: Path) -> None:
    def program(replica: Replica) -> None:
        weight = number()
        optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
        directory = tmp_path / str(replica.index)
        with replica.session(nn.ParameterList([weight]), optimizer, last_step=1, directory=directory):
            pass

    with pytest.raises(ConfigError, match="directory: expected one that every replica of the ring can read"):
        run("ring", program)


@pytest.mark.parametrize("way", WAYS)
def test_averages_that_were_not_kept_before_begin_where_the_parameters_are(way: Way, tmp_path: Path) -> None:
    run(way, adding_up(tmp_path, 3, lambda weight: torch.optim.SGD([weight], lr=1.0)))

    def program(replica: Replica) -> float:
        weight = number()
        optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
        with (
            replica.session(
                nn.ParameterList([weight]), optimizer, directory=tmp_path, average=0.9
            ) as session,
            session.averaged(),
        ):
            return weight.item()

    assert run(way, program) == [-3.0] * (1 if way == "alone" else 2)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_saved_twice_of_what_is_trained_later(way: Way, tmp_path: Path) -> None:
    """It was a constant at first, which is saved beside the parameters."""
    run(way, growing(3, tmp_path, 4))
    assert read(tmp_path / "step-3").buffers == ("late",)
    run(way, growing(5, tmp_path, 4))
    assert read(tmp_path / "step-5").buffers == ()
    assert {parameter.name for parameter in read(tmp_path / "step-5").parameters} == {"early", "late"}
