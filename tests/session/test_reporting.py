"""What a session leaves in its directory for others to see."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from argosy.cluster.discover import discover
from argosy.entry import Replica
from argosy.errors import ConfigError
from argosy.modes import Async, Mode, Sync
from argosy.observe.journal import read
from argosy.session.session import Session
from argosy.testing import LocalCluster


def alone() -> Replica:
    return Replica(discover({}, {}), None)


def train(
    replica: Replica, directory: Path | None, last_step: int, each: Callable[[Session], None] = lambda _: None
) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
    with replica.session(model, optimizer, last_step=last_step, directory=directory) as session:
        for _ in session.batches(range(1000)):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 2)).sum()
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
            each(session)


def events(directory: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read(directory) if event["event"] == kind]


def test_alone_the_journal_has_the_beginning_the_way_and_the_end(tmp_path: Path) -> None:
    train(alone(), tmp_path / "run", last_step=5)
    (started,) = events(tmp_path / "run", "started")
    assert (started["step"], started["last_step"], started["workers"]) == (0, 5, 1)
    last = events(tmp_path / "run", "progress")[-1]
    assert last["step"] == 5
    assert isinstance(last["loss"], float)
    assert list(last["workers"]) == ["/job:worker/task:0"]
    assert [event["step"] for event in events(tmp_path / "run", "ended")] == [5]


def test_with_servers_it_has_what_they_count(tmp_path: Path) -> None:
    LocalCluster(servers=2, workers=2, mode=Sync()).run(lambda replica: train(replica, tmp_path, 7))
    assert len(events(tmp_path, "started")) == 1  # the chief's
    last = events(tmp_path, "progress")[-1]
    assert last["step"] == 7
    assert [worker["gradients"] for worker in last["workers"].values()] == [7, 7]
    assert {"loss", "gradients_per_second", "staleness", "dropped", "waiting_for"} <= last.keys()
    # The final state is saved when the last worker is out.
    assert [event["event"] for event in read(tmp_path)][-2:] == ["ended", "saved"]


def test_it_is_written_while_the_training_goes_on(tmp_path: Path) -> None:
    """The chief waits in the middle of the loop: the thread looks without it."""
    moved = threading.Event()

    def wait(session: Session) -> None:
        if session.replica.is_chief and session.global_step > 20 and not moved.is_set():
            seen = session.watch.look()
            assert seen is not None
            assert seen.step > 20
            assert events(tmp_path, "progress")[-1]["step"] > 20
            moved.set()

    LocalCluster(servers=1, workers=2, mode=Async()).run(lambda replica: train(replica, tmp_path, 60, wait))
    assert moved.is_set()


def test_a_worker_that_is_lost_is_an_event(tmp_path: Path) -> None:
    cluster = LocalCluster(servers=2, workers=2, mode=Sync())

    def die(session: Session) -> None:
        if session.replica.index == 1 and session.global_step == 3:
            cluster.kill(1)
        if session.replica.is_chief and session.global_step in (3, 4):
            session.watch.look()

    outcome = cluster.run_to_the_end(lambda replica: train(replica, tmp_path, 6, die))
    assert not outcome.errors
    (lost,) = events(tmp_path, "lost")
    assert (lost["task"], lost["step"]) == ("/job:worker/task:1", 3)
    assert {event["task"] for event in events(tmp_path, "joined")} == {
        f"/job:worker/task:{i}" for i in (0, 1)
    }


def test_a_second_run_appends(tmp_path: Path) -> None:
    for _ in range(2):
        train(alone(), tmp_path, last_step=3)
    assert len(events(tmp_path, "started")) == len(events(tmp_path, "ended")) == 2


def test_a_failure_is_there_too(tmp_path: Path) -> None:
    def fail(session: Session) -> None:
        session.record("saved", step=session.global_step)
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        train(alone(), tmp_path, 3, fail)
    assert [event["step"] for event in events(tmp_path, "saved")] == [1]
    (failed,) = events(tmp_path, "failed")
    assert (failed["error"], failed["task"]) == ("ValueError: boom", "/job:worker/task:0")


@pytest.mark.parametrize("mode", [None, Async(), Sync()], ids=str)
@pytest.mark.parametrize("steps", [1, 3, 200])
def test_every_number_is_recorded_with_its_step_and_the_last_one_always(
    tmp_path: Path, mode: Mode | None, steps: int
) -> None:
    """A loss that is its own step: whatever is recorded must say so, however short the run."""

    def program(replica: Replica) -> int:
        model = torch.nn.Linear(2, 1)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer, last_step=steps, directory=tmp_path) as session:
            for _ in session.batches(range(1000)):
                model.weight.grad = torch.ones(1, 2)
                optimizer.step()
                session.log(loss=float(session.global_step))
                if replica.is_chief and session.global_step % 50 < 2:
                    session.watch.look()
        return session.noted[0]

    chiefs = program(alone()) if mode is None else LocalCluster(2, 2, mode).run(program)[0]
    assert isinstance(mode, Async) or chiefs == steps  # else the last update may be the other worker's
    recorded = [(event["step"], event["loss"]) for event in events(tmp_path, "progress") if "loss" in event]
    assert all(step == loss for step, loss in recorded), recorded
    assert max((step for step, _ in recorded), default=0) >= chiefs


def test_without_a_directory_nothing_is_written_and_no_thread_runs() -> None:
    def look(session: Session) -> None:
        session.record("saved", step=1)
        assert not [thread for thread in threading.enumerate() if thread.name == "argosy watch"]

    train(alone(), None, 2, look)


def test_what_is_no_number_is_named(tmp_path: Path) -> None:
    replica = alone()
    model = torch.nn.Linear(2, 1)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
    with replica.session(model, optimizer) as session:
        session.log(loss=torch.ones(3))
        with pytest.raises(
            ConfigError, match=r"session.log\(loss=...\): expected a number, got a tensor of \(3,\)"
        ):
            session.numbers()
        session.log(note="text")
        with pytest.raises(ConfigError, match="expected a number, got 'text'"):
            session.numbers()
