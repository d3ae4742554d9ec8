"""The modes from end to end: what each worker is told of its gradients."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from one_number import Bench, one_weight
from torch import nn

from argosy.entry import Replica
from argosy.modes import Async, Sync
from argosy.protocol.decisions import Status
from argosy.replica.exchange import Verdict
from argosy.testing import Lane, LocalCluster


# --- asynchronous -----------------------------------------------------------------------------------------
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


@pytest.mark.parametrize("buffers", ["chief", "mean"])
def test_the_buffers_of_a_held_pass_count(buffers: Literal["chief", "mean"]) -> None:
    def program(replica: Replica) -> list[float]:
        model = one_weight()
        passes = torch.zeros(())
        model.register_buffer("passes", passes)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        seen = []
        with replica.session(model, optimizer, buffers=buffers):
            for _ in range(6):
                passes += 1
                model.weight.grad = torch.ones(1, 1)
                optimizer.step()
                seen.append(passes.item())
        return seen

    mode = Sync(aggregate=4, distinct=False, tokens=1)
    assert LocalCluster(1, 2, mode).run(program) == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]] * 2


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

    # Without tokens a worker has one turn in a step, whether or not it must be another's.
    results = LocalCluster(2, 3, Sync(distinct=distinct)).run(program)
    assert results == [(3, 3.0), (6, 7.5), (9, 13.5)]


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


def test_a_killed_worker_is_left_behind() -> None:
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
