"""What a session and a replica promise a program: beginnings, batches, gathers, and what is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn

import argosy
from argosy.cluster.discover import discover
from argosy.entry import Replica
from argosy.errors import ConfigError
from argosy.modes import Async, Mode, Sync
from argosy.replica.exchange import Verdict
from argosy.testing import Lane, LocalCluster

LANES: tuple[Lane, ...] = ("queue", "memory")


def alone() -> Replica:
    return Replica(discover({}, {}), None)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


# --- the beginning ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("mode", [Async(), Sync()], ids=str)
def test_everybody_starts_from_the_chiefs_values(mode: Mode, lane: Lane) -> None:
    def make(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        net[1].running_mean.normal_()  # type: ignore[operator]
        net[0].bias.requires_grad_(False)
        return net

    models = [make(seed) for seed in range(3)]
    chiefs = {name: value.clone() for name, value in models[0].state_dict().items()}

    def program(replica: Replica) -> None:
        model = models[replica.index]
        trained = [p for p in model.parameters() if p.requires_grad]  # the frozen bias is not among them
        optimizer = replica.distribute(torch.optim.SGD(trained, lr=0.1))
        with replica.session(model, optimizer):
            for name, value in model.state_dict().items():
                assert torch.equal(value, chiefs[name]), name
            replica.barrier()

    LocalCluster(2, 3, mode, lane=lane).run(program)


def test_the_first_step_starts_a_training_without_a_session() -> None:
    def program(replica: Replica) -> tuple[str, float]:
        model = nn.Linear(3, 1, bias=False)
        nn.init.constant_(model.weight, float(replica.index))
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        model(torch.ones(1, 3)).sum().backward()
        verdict = optimizer.step()
        return verdict.status, model.weight.sum().item()

    assert LocalCluster(2, 2, Sync()).run(program) == [("applied", -3.0)] * 2


def test_a_late_worker_finds_a_group_that_was_added_meanwhile() -> None:
    """It brings the model that the chief began with, trains its part, and adds the group in its turn."""
    cluster = LocalCluster(2, 2, Async())
    added = threading.Event()

    def program(replica: Replica) -> float:
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 1, bias=False))
        nn.init.ones_(model[0].weight)  # type: ignore[arg-type]
        nn.init.ones_(model[1].weight)  # type: ignore[arg-type]
        optimizer = replica.distribute(torch.optim.SGD(model[0].parameters(), lr=0.01))
        with replica.session(model, optimizer):
            one_step(model, optimizer)
            optimizer.add_param_group({"params": list(model[1].parameters()), "lr": 0.1})
            one_step(model, optimizer)
            added.set()
            replica.barrier()
        return sum(p.sum().item() for p in model.parameters())

    cluster.start(0, program)
    assert added.wait(20)
    cluster.start(1, program)
    outcome = cluster.finish()
    assert not outcome.errors
    assert outcome.results[0] == pytest.approx(outcome.results[1])


# --- batches ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("loader", "epochs", "expected"),
    [
        ([1, 2], 2, [1, 2, 1, 2]),
        ([1, 2], 0, []),
        ([1, 2], None, [1, 2, 1, 2, 1]),
        (iter([1, 2]), None, [1, 2]),
        (iter([1, 2]), 3, [1, 2]),
        ((n for n in (1, 2)), None, [1, 2]),
        ([], None, []),
        (range(9), None, [0, 1, 2, 3, 4]),
    ],
    ids=["epochs", "no-epoch", "repeated", "iterator", "iterator-epochs", "generator", "empty", "stopped"],
)
def test_batches(loader: Iterable[int], epochs: int | None, expected: list[int]) -> None:
    model = nn.Linear(3, 1)

    def program(replica: Replica) -> list[int]:
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        seen = []
        with replica.session(model, optimizer, last_step=5) as session:
            for batch in session.batches(loader, epochs):
                seen.append(batch)
                one_step(model, optimizer)
        return seen

    assert LocalCluster(1, 1, Async()).run(program) == [expected]


@pytest.mark.parametrize(
    "make",
    [
        lambda r, m, o: r.session(m, o, last_step=-1),
        lambda r, m, o: r.session(m, o, buffers="both"),
        lambda r, m, o: r.session(m, torch.optim.SGD(m.parameters(), lr=1)),
        lambda r, m, o: next(r.session(m, o).batches([1], epochs=-1)),
        lambda r, m, o: r.distribute(torch.optim.SGD(m.parameters(), lr=1), clip_norm=0),
        lambda r, m, o: o.step(every=0),
    ],
    ids=["last_step", "buffers", "optimizer", "epochs", "clip_norm", "every"],
)
def test_what_cannot_work_is_refused(make: Callable[[Replica, nn.Module, object], object]) -> None:
    replica, model = alone(), nn.Linear(3, 1)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1))
    with pytest.raises(ConfigError):
        make(replica, model, optimizer)


def test_a_log_line_is_not_due_at_every_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unread(torch.Tensor):
        def __float__(self) -> float:
            raise AssertionError("the value was read")

    model = nn.Linear(3, 1)
    replica = alone()
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
    with replica.session(model, optimizer, last_step=20) as session:
        session.log(loss=torch.zeros(()).as_subclass(Unread))
        one_step(model, optimizer)
        monkeypatch.setattr("argosy.session.session.LOG_EVERY", 0.0)
        session.log(loss=model(torch.zeros(1, 3)).sum() * 0 + 0.25, accuracy=0.5)
    assert "argosy: step  1 of 20  loss 0.2500   accuracy 0.5000" in capsys.readouterr().err


# --- gathers ---------------------------------------------------------------------------------------------
def test_barrier_broadcast_and_gather() -> None:
    inside: list[int] = []

    def program(replica: Replica) -> list[object]:
        inside.append(replica.index)
        replica.barrier()
        assert sorted(inside) == [0, 1, 2]
        values = [replica.broadcast({"from": replica.index, "list": [1, 2.5, "x", None, b"raw"]})]
        values.append(replica.gather(replica.index * 10))
        values.append(replica.gather("tuple" if replica.index else None))
        return values

    for values in LocalCluster(2, 3, Async()).run(program):
        assert values[0] == {"from": 0, "list": [1, 2.5, "x", None, b"raw"]}
        assert values[1:] == [[0, 10, 20], [None, "tuple", "tuple"]]


def test_who_has_left_is_not_met() -> None:
    def program(replica: Replica) -> list[object]:
        return [] if replica.index == 1 else replica.gather(replica.index)

    assert LocalCluster(1, 3, Sync()).run(program) == [[0, 2], [], [0, 2]]


def test_alone_everybody_is_met() -> None:
    replica = alone()
    replica.barrier()
    assert replica.broadcast("x") == "x"
    assert replica.gather(3) == [3]
    assert (replica.index, replica.count, replica.is_chief) == (0, 1, True)
    assert replica.task == "/job:worker/task:0"


# --- optimizers -------------------------------------------------------------------------------------------
class MyAdam(torch.optim.Adam):
    """Might do anything: the servers would not know."""


REFUSED: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "LBFGS": lambda p: torch.optim.LBFGS(p),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "MyAdam": lambda p: MyAdam(p),
    "Rprop": lambda p: torch.optim.Rprop(p),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_optimizer_that_is_not_supported_is_refused_by_name(name: str) -> None:
    def program(replica: Replica) -> str:
        with pytest.raises(ConfigError) as caught:
            replica.distribute(REFUSED[name](nn.Linear(2, 2).parameters()))
        return str(caught.value)

    (message,) = LocalCluster(1, 1, Sync()).run(program)
    assert f".{name}" in message.partition("got")[2]
    assert "torch.optim.AdamW" in message
    assert "\n" not in message


def test_alone_any_optimizer_does() -> None:
    model = nn.Linear(3, 1)
    optimizer = alone().distribute(torch.optim.Rprop(model.parameters()))
    one_step(model, optimizer)
    assert optimizer.verdict == Verdict("applied", 1)


def test_it_is_an_optimizer_like_torchs() -> None:
    model = nn.Linear(3, 1)
    inner = torch.optim.Adam(model.parameters(), lr=0.5)
    optimizer = alone().distribute(inner)
    assert isinstance(optimizer, torch.optim.Optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    one_step(model, optimizer)
    scheduler.step()
    assert inner.param_groups[0]["lr"] == pytest.approx(0.05)
    state = optimizer.state_dict()
    assert state.keys() == inner.state_dict().keys()
    assert state["state"].keys() == {0, 1}
    optimizer.load_state_dict(state)
    one_step(model, optimizer)
    assert inner.state[model.weight]["step"] == 2


# --- the end ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("mode", [Async(), Sync()], ids=str)
def test_afterwards_parameters_are_the_models_own_and_equal_everywhere(mode: Mode, lane: Lane) -> None:
    models = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)) for _ in range(3)]

    def program(replica: Replica) -> None:
        model = models[replica.index]
        optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=0.01))
        with replica.session(model, optimizer, last_step=21) as session:
            for _ in session.batches(range(100)):
                optimizer.zero_grad()
                model(torch.randn(5, 3)).sum().backward()
                optimizer.step()

    LocalCluster(2, 3, mode, lane=lane).run(program)
    states = [model.state_dict() for model in models]
    for state in states[1:]:
        assert all(torch.equal(state[name], value) for name, value in states[0].items())
    pointers = {p.untyped_storage().data_ptr() for model in models for p in model.parameters()}
    assert len(pointers) == sum(len(list(model.parameters())) for model in models)
    for parameter in models[0].parameters():
        with torch.no_grad():
            parameter.fill_(7.0)  # nobody else's business
        assert parameter.untyped_storage().nbytes() == parameter.numel() * 4
    assert not torch.equal(states[0]["0.weight"], states[1]["0.weight"])


def test_a_second_training_needs_a_second_job_but_alone_it_goes_on() -> None:
    model, replica = nn.Linear(3, 1), alone()
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
    for last_step in (3, 5):
        with replica.session(model, optimizer, last_step=last_step) as session:
            for _ in session.batches(range(100)):
                one_step(model, optimizer)
        assert session.global_step == last_step


def test_leaving_with_exit_code_0_is_no_failure() -> None:
    def program(replica: Replica) -> None:
        model = nn.Linear(3, 1)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer):
            one_step(model, optimizer)
            if replica.index == 1:
                raise SystemExit(0)
            one_step(model, optimizer)

    errors = LocalCluster(1, 2, Sync()).run_to_the_end(program).errors
    assert errors.keys() == {"/job:worker/task:1"}
    assert isinstance(errors["/job:worker/task:1"], SystemExit)


def test_seeds_differ_between_workers_and_repeat() -> None:
    def identity(index: int) -> Replica:
        words = {"job_name": "worker", "task_index": str(index), "ps_hosts": "h:1", "worker_hosts": "h:2,h:3"}
        return argosy.Replica(discover(words, {}), None)

    assert identity(0).seed(7) == identity(0).seed(7)
    assert len({identity(index).seed(number) for index in (0, 1) for number in (0, 1)}) == 4
