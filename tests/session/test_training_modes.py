"""The modes from end to end: what each worker is told of its gradients, and when the job ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from argosy.errors import ConfigError, JobFailed, ModelMismatch
from argosy.modes import Async, Mode, Sync
from argosy.replica.exchange import Verdict
from argosy.replica.optimizer import DistributedOptimizer
from argosy.replica.replica import Replica
from argosy.session.session import Session
from argosy.testing import Lane, LocalCluster
from argosy.update.decisions import Status


def one_weight() -> nn.Linear:
    """A model of one number, whose gradient is whatever a test sets: then SGD with lr 1 adds them up."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


class Bench:
    """A worker at work on one number: `push(g)` takes g from it."""

    def __init__(self, replica: Replica, last_step: int | None = None) -> None:
        self.replica = replica
        self.model = one_weight()
        self.weight = self.model.weight
        self.optimizer: DistributedOptimizer = replica.distribute(
            torch.optim.SGD(self.model.parameters(), lr=1.0)
        )
        self.session: Session = replica.session(self.model, self.optimizer, last_step=last_step)

    def push(self, gradient: float, weight: float | None = None) -> Verdict:
        self.weight.grad = torch.full((1, 1), gradient)
        return self.optimizer.step(weight=weight)

    def pull(self) -> Verdict:
        return self.optimizer._exchange.pull()

    @property
    def value(self) -> float:
        return self.weight.item()


# --- asynchronous -----------------------------------------------------------------------------------------
def in_turn(*workers: int) -> Callable[[int, int], Sequence[int]]:
    return lambda server, turn: workers


@pytest.mark.parametrize("servers", [1, 2])
def test_async_staleness_is_counted(servers: int) -> None:
    """Worker 0 pulls, the others push once each, then worker 0 pushes: as stale as there were others."""
    workers = 4
    pulled, pushed = threading.Barrier(workers), threading.Barrier(workers)

    def program(replica: Replica) -> tuple[Verdict, Verdict, float]:
        bench = Bench(replica)
        with bench.session:
            pulled.wait()
            if replica.index == 0:
                pushed.wait()
                first = bench.push(-1.0)
            else:
                first = bench.push(-1.0)
                pushed.wait()
            second = bench.push(-1.0) if replica.index == 0 else bench.pull()
            return first, second, bench.value

    results = LocalCluster(servers, workers, Async()).run(program)
    assert [first.status for first, _, _ in results] == ["applied"] * workers
    assert sorted(first.staleness for first, _, _ in results[1:]) == [0, 1, 2]
    first, second, value = results[0]
    assert (first.staleness, first.global_step) == (3, 4)
    assert (second.staleness, second.global_step) == (0, 5)
    assert value == 5.0


@pytest.mark.parametrize("lane", ["queue", "memory"])
@pytest.mark.parametrize("bound", [0, 1, 2, 5])
def test_async_staleness_is_bounded(bound: int, lane: Lane) -> None:
    workers, pushes = 4, 25

    def program(replica: Replica) -> list[Verdict]:
        bench = Bench(replica)
        with bench.session:
            return [bench.push(-1.0) for _ in range(pushes)]

    cluster = LocalCluster(
        2, workers, Async(max_staleness=bound), lane="memory" if lane == "memory" else "queue"
    )
    verdicts = [verdict for one in cluster.run(program) for verdict in one]
    assert {verdict.status for verdict in verdicts} == {"applied"}
    assert max(verdict.staleness for verdict in verdicts) <= bound
    # Each update made one step, and no two the same.
    assert max(verdict.global_step for verdict in verdicts) == workers * pushes


def test_async_without_a_bound_nobody_waits() -> None:
    """Worker 1 never pushes; worker 0 goes on alone."""
    done = threading.Event()

    def program(replica: Replica) -> int:
        bench = Bench(replica)
        with bench.session:
            if replica.index == 1:
                assert done.wait(20)
                return bench.pull().global_step
            for _ in range(10):
                verdict = bench.push(1.0)
            done.set()
            return verdict.global_step

    assert LocalCluster(1, 2, Async()).run(program) == [10, 10]


def test_a_bound_waits_for_the_slow_one_and_no_longer() -> None:
    """With a bound of 2, worker 0 makes two updates on its own; the third waits for worker 1's."""
    started, third = threading.Barrier(2), threading.Event()

    def program(replica: Replica) -> list[int]:
        bench = Bench(replica)
        with bench.session:
            started.wait()
            if replica.index == 1:
                assert third.wait(20)
                return [bench.push(1.0).staleness]
            steps = [bench.push(1.0).global_step, bench.push(1.0).global_step]
            third.set()
            return [*steps, bench.push(1.0).global_step]

    results = LocalCluster(1, 2, Async(max_staleness=2)).run(program)
    assert results == [[1, 2, 4], [2]]


# --- synchronous ------------------------------------------------------------------------------------------
def test_sync_workers_go_on_together() -> None:
    def program(replica: Replica) -> list[tuple[Status, int, int, float]]:
        bench = Bench(replica)
        seen = []
        with bench.session:
            for step in range(5):
                verdict = bench.push(-float(replica.index + step))
                seen.append((verdict.status, verdict.staleness, verdict.global_step, bench.value))
        return seen

    results = LocalCluster(2, 3, Sync()).run(program)
    assert results[0] == results[1] == results[2]
    assert results[0] == [("applied", 0, 1, 1.0), ("applied", 0, 2, 3.0), ("applied", 0, 3, 6.0),
                          ("applied", 0, 4, 10.0), ("applied", 0, 5, 15.0)]  # fmt: skip


@pytest.mark.parametrize(
    ("late", "told", "values"),
    [("drop", ("dropped", 1), [-1.0, -1.0]), ("fold", ("folded", 1), [-1.0, -4.0])],
)
def test_a_late_gradient(late: str, told: tuple[str, int], values: list[float]) -> None:
    """Workers 0 and 1 make step 1 without worker 2, whose gradient of 10 then comes late.

    Folded, it counts in step 2, which is (1 + 1 + 10) / 3 = 4 then; dropped, step 2 is of 0's and 1's.
    """
    first_made = threading.Barrier(3)
    late_told = threading.Barrier(3)
    pulled = threading.Barrier(3)
    mode = Sync(aggregate=2, late="fold" if late == "fold" else "drop")

    def program(replica: Replica) -> list[tuple[str, int, int]]:
        bench = Bench(replica)
        verdicts = []
        with bench.session:
            pulled.wait()
            if replica.index < 2:
                verdicts.append(bench.push(1.0))
                assert bench.value == values[0]
                first_made.wait()
                late_told.wait()
                verdicts.append(bench.push(1.0))
                assert bench.value == -1.0 + (values[1] if late == "fold" else -1.0)
            else:
                first_made.wait()
                verdicts.append(bench.push(10.0))
                late_told.wait()
            return [(v.status, v.staleness, v.global_step) for v in verdicts]

    results = LocalCluster(2, 3, mode).run(program)
    assert results[0] == results[1] == [("applied", 0, 1), ("applied", 0, 2)]
    assert results[2] == [(*told, 1)]


def test_the_first_k_are_the_same_on_every_server() -> None:
    """Each server sees another order; all take one and the same set, or the halves of the model disagree."""

    def order(server: int, turn: int) -> Sequence[int]:
        return [(0, 1, 2), (2, 1, 0), (1, 2, 0)][(server + turn) % 3]

    def program(replica: Replica) -> list[tuple[float, ...]]:
        model = nn.ParameterList([torch.zeros(1) for _ in range(3)])
        optimizer = replica.distribute(
            torch.optim.SGD(model.parameters(), lr=1.0), lambda name: int(name[-1])
        )
        seen = []
        with replica.session(model, optimizer, last_step=30) as session:
            for _ in session.batches(range(1000)):
                for parameter in model:
                    parameter.grad = torch.full((1,), 2.0**replica.index)
                optimizer.step()
                seen.append(tuple(parameter.item() for parameter in model))
        return seen

    for late in ("drop", "fold"):
        mode = Sync(aggregate=2, late="drop" if late == "drop" else "fold")
        for seen in LocalCluster(3, 3, mode, wait=40).run(program):
            assert all(len(set(values)) == 1 for values in seen)


def test_tokens_let_a_worker_fill_a_step_alone() -> None:
    """Any 4 gradients make a step; a worker may be 3 ahead. Worker 0 makes a step alone, 1 comes after it."""
    made = threading.Event()

    def program(replica: Replica) -> list[tuple[str, int]]:
        bench = Bench(replica)
        with bench.session:
            if replica.index == 1:
                assert made.wait(20)
                bench.pull()
                return [(v.status, v.global_step) for v in [bench.push(1.0)]]
            verdicts = [bench.push(float(g)) for g in (1, 2, 3, 6)]
            assert bench.value == -3.0
            made.set()
            return [(v.status, v.global_step) for v in verdicts]

    results = LocalCluster(2, 2, Sync(aggregate=4, distinct=False, tokens=3)).run(program)
    assert results[0] == [("held", 0), ("held", 0), ("held", 0), ("applied", 1)]
    assert results[1][0] in [("held", 1), ("applied", 2)]


def test_more_gradients_than_workers() -> None:
    def program(replica: Replica) -> tuple[int, float]:
        bench = Bench(replica, last_step=4)
        with bench.session as session:
            for _ in session.batches(range(1000)):
                bench.push(-1.0)
        return session.global_step, bench.value

    assert LocalCluster(2, 2, Sync(aggregate=6, distinct=False)).run(program) == [(4, 4.0)] * 2


@pytest.mark.parametrize("distinct", [True, False])
def test_a_worker_that_runs_out_of_data_lowers_the_number(distinct: bool) -> None:
    """Worker w has 3 (w + 1) batches; each step is the mean of those who are left, and nobody hangs."""

    def program(replica: Replica) -> tuple[int, float]:
        bench = Bench(replica)
        with bench.session as session:
            for _ in session.batches(iter(range(3 * (replica.index + 1)))):
                assert bench.push(-float(replica.index)).status == "applied"
            return session.global_step, bench.value

    results = LocalCluster(2, 3, Sync(distinct=distinct)).run(program)
    if distinct:
        assert results == [(3, 3.0), (6, 7.5), (9, 13.5)]
    else:
        assert results[2][0] >= 6


def test_skip_holds_nobody_up() -> None:
    def program(replica: Replica) -> list[tuple[Status, int, float]]:
        bench = Bench(replica)
        seen = []
        with bench.session:
            for step in range(4):
                skips = step == 3 or (step == 1 and replica.index == 0)
                verdict = bench.optimizer.skip() if skips else bench.push(-1.0 - replica.index)
                seen.append((verdict.status, verdict.global_step, bench.value))
        return seen

    one, other = LocalCluster(2, 2, Sync()).run(program)
    assert one == [("applied", 1, 1.5), ("skipped", 2, 3.5), ("applied", 3, 5.0), ("skipped", 3, 5.0)]
    assert other == [("applied", 1, 1.5), ("applied", 2, 3.5), ("applied", 3, 5.0), ("skipped", 3, 5.0)]


def test_a_killed_worker_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argosy.store.attendance.RETURN_GRACE", 0.1)
    cluster = LocalCluster(2, 3, Sync())

    def program(replica: Replica) -> tuple[int, float]:
        bench = Bench(replica, last_step=10)
        with bench.session as session:
            for step in session.batches(range(100)):
                if replica.index == 2 and step == 5:
                    cluster.kill(2)
                bench.push(-float(replica.index))
        return session.global_step, bench.value

    outcome = cluster.run_to_the_end(program)
    assert not outcome.errors
    assert outcome.results == {0: (10, 7.5), 1: (10, 7.5)}  # five steps of the mean 1, five of 0.5


# --- the end ----------------------------------------------------------------------------------------------
MODES = [
    Async(),
    Async(max_staleness=1),
    Sync(),
    Sync(aggregate=2),
    Sync(aggregate=2, late="fold"),
    Sync(aggregate=5, distinct=False),
]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("servers", [1, 3])
def test_not_one_update_after_the_last_step(mode: Mode, servers: int) -> None:
    """Every update adds exactly 1, so the value counts them; and every worker is told, and has the same."""
    last = 17

    def program(replica: Replica) -> tuple[int, float, bool, str]:
        bench = Bench(replica, last_step=last)
        with bench.session as session:
            for _ in session.batches(range(100)):
                bench.push(-1.0)
            late = bench.push(-1.0)  # whoever goes on all the same changes nothing
        return session.global_step, bench.value, session.should_stop, late.status

    for result in LocalCluster(servers, 3, mode).run(program):
        assert result == (last, float(last), True, "dropped")


@pytest.mark.parametrize("mode", [Async(), Sync(aggregate=1)], ids=str)
def test_a_worker_that_arrives_after_the_end_gets_no_batches(mode: Mode) -> None:
    cluster = LocalCluster(2, 2, mode)
    done = threading.Event()

    def program(replica: Replica) -> tuple[int, int, float]:
        bench = Bench(replica, last_step=3)
        with bench.session as session:
            batches = 0
            for _ in session.batches(range(100)):
                bench.push(-1.0)
                batches += 1
        done.set()
        return batches, session.global_step, bench.value

    cluster.start(0, program)
    assert done.wait(20)
    cluster.start(1, program)
    outcome = cluster.finish()
    assert not outcome.errors
    assert outcome.results == {0: (3, 3, 3.0), 1: (0, 3, 3.0)}


def test_a_last_step_of_zero_trains_nothing() -> None:
    def program(replica: Replica) -> tuple[list[int], float]:
        bench = Bench(replica, last_step=0)
        with bench.session as session:
            return list(session.batches(range(5))), bench.value

    assert LocalCluster(2, 2, Sync()).run(program) == [([], 0.0)] * 2


def test_an_error_in_a_worker_ends_the_job() -> None:
    def program(replica: Replica) -> None:
        bench = Bench(replica)
        with bench.session as session:
            for step in session.batches(range(100)):
                if replica.index == 1 and step == 3:
                    raise ValueError("boom")
                bench.push(1.0)

    errors = LocalCluster(2, 3, Sync()).run_to_the_end(program).errors
    assert isinstance(errors.pop("/job:worker/task:1"), ValueError)
    assert errors.keys() == {"/job:worker/task:0", "/job:worker/task:2", "/job:ps/task:0", "/job:ps/task:1"}
    for error in errors.values():
        assert isinstance(error, JobFailed)
        assert (error.task, error.reason) == ("/job:worker/task:1", "ValueError: boom")


# --- disagreement -----------------------------------------------------------------------------------------
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
