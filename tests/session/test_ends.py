"""The end of a job, in every mode: not one update too late, and an error ends it for all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from one_number import Bench, one_weight

import argosy
from argosy.entry import Replica
from argosy.errors import JobFailed
from argosy.hooks import Hook, LogSteps, StopAtStep
from argosy.modes import Async, Mode, Sync
from argosy.protocol.decisions import Status
from argosy.testing import Lane, LocalCluster

LANES: list[Lane] = ["queue", "memory"]
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


class OwnEnd(Hook):
    """Would end the training at some step."""

    ends_training = True


@pytest.mark.parametrize(
    ("loader", "options", "told"),
    [
        (range(3), {}, True),
        ([1, 2, 3], {"hooks": [LogSteps(every=1000)]}, True),
        (range(3), {"last_step": 9}, False),
        (range(3), {"hooks": [StopAtStep(9)]}, False),
        (range(3), {"hooks": [OwnEnd()]}, False),
        (iter(range(3)), {}, False),
    ],
)
def test_a_training_without_end_says_so_once(
    loader: Any, options: dict[str, Any], told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def program(replica: Replica) -> None:
        bench = Bench(replica, **options)
        with bench.session as session:
            for _ in range(2):
                for _ in session.batches(loader if replica.is_chief else range(3)):
                    bench.push(1.0)
                    if session.global_step >= 4:
                        break
            list(session.batches(range(3), epochs=1))

    LocalCluster(1, 2, Async()).run(program)
    assert capsys.readouterr().err.count("trains without end") == int(told)


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


# --- what is left over ------------------------------------------------------------------------------------
@pytest.mark.parametrize("lane", LANES)
def test_gradients_that_were_held_are_in_the_last_workers_parameters(lane: Lane, tmp_path: Path) -> None:
    """Three of the four gradients of a step are there when the data ends: they are the step."""

    def program(replica: Replica) -> tuple[list[Status], float]:
        model = one_weight()
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        statuses = []
        with replica.session(model, optimizer, directory=tmp_path) as session:
            for _ in session.batches(iter(range(3))):
                model.weight.grad = torch.ones(1, 1)
                statuses.append(optimizer.step().status)
        assert session.global_step == 1
        return statuses, model.weight.item()

    cluster = LocalCluster(2, 1, Sync(aggregate=4, distinct=False, tokens=3), lane=lane)
    assert cluster.run(program) == [(["held"] * 3, -1.0)]
    assert argosy.load(tmp_path)["weight"].item() == -1.0


@pytest.mark.parametrize("lane", LANES)
def test_a_gradient_that_was_folded_is_in_the_last_workers_parameters(lane: Lane, tmp_path: Path) -> None:
    """Worker 1's gradient comes late, and no step comes after it: the last one to leave makes it a step."""
    pulled, made, left = threading.Barrier(2), threading.Event(), threading.Event()

    def program(replica: Replica) -> tuple[str, float]:
        model = one_weight()
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        with replica.session(model, optimizer, directory=tmp_path):
            pulled.wait(20)
            if replica.index:
                assert made.wait(20)
            model.weight.grad = torch.full((1, 1), replica.index + 1.0)
            status = optimizer.step().status
            if replica.index:
                assert left.wait(20)
            made.set()
        left.set()
        return status, model.weight.item()

    results = LocalCluster(2, 2, Sync(aggregate=1, late="fold"), lane=lane).run(program)
    assert results == [("applied", -1.0), ("folded", -3.0)]
    assert argosy.load(tmp_path)["weight"].item() == -3.0
