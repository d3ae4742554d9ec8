"""A process that takes a dead worker's place: the training gives the same bits as without the death.

The whole job is in this process, where torch's generator is one for all: what is drawn here comes from a
generator of the worker's own, and `faults/test_replacing.py` has the real ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from argosy.cluster.loss_policy import LossPolicy
from argosy.entry import Replica
from argosy.errors import JobFailed
from argosy.modes import Async, Mode, Sync
from argosy.protocol.joining import Registered
from argosy.store.client import StoreClient
from argosy.testing import Killed, Lane, LocalCluster

STEPS = 12
RESTARTS = LossPolicy(max_restarts=3)
# Where in a turn a worker dies: with its batch in hand, after its step, or as it waits for the answer.
Moment = str
Kill = Callable[[int, int, Moment], None]


class Draws:
    """A generator whose state is kept with the session."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self) -> float:
        return torch.rand((), generator=self.generator).item()

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.generator.get_state().tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(torch.tensor(state["state"], dtype=torch.uint8))


class Program:
    """A training that uses all there is to lose: data, random numbers, a schedule, statistics, gathers."""

    def __init__(
        self,
        folder: Path | None = None,
        buffers: str = "chief",
        every: int = 1,
        skips: bool = False,
        steps: int = STEPS,
    ) -> None:
        self.steps = steps
        self.folder = folder
        self.buffers = buffers
        self.every = every
        self.skips = skips

    def __call__(self, replica: Replica, kill: Kill) -> list[float]:
        assert replica.broadcast(replica.index + 7) == 7
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
        for number, parameter in enumerate(model.parameters()):
            nn.init.constant_(parameter, 0.1 * (number + 1))
        with torch.no_grad():
            model[0].weight += torch.arange(24.0).view(6, 4).sin()  # type: ignore[operator]
        draws = Draws(replica.index)
        optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=0.05))
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        data = TensorDataset(torch.arange(168.0).view(42, 4).cos(), torch.arange(42.0).sin())
        loader = replica.loader(data, batch_size=3, seed=1)
        options: dict[str, Any] = {} if self.folder is None else {"directory": self.folder, "save_every": 4}
        with replica.session(
            model,
            optimizer,
            last_step=self.steps,
            buffers=self.buffers,  # type: ignore[arg-type]
            state={"schedule": schedule, "draws": draws},
            **options,
        ) as session:
            for inputs, targets in session.batches(loader):
                optimizer.zero_grad()
                kill(replica.index, session.global_step, "computing")
                noisy = inputs + draws.draw()
                (model(noisy).view(-1) - targets).square().mean().backward()
                if self.skips and (session.global_step + replica.index) % 4 == 1:
                    verdict = optimizer.skip()
                else:
                    verdict = optimizer.step(every=self.every)
                kill(replica.index, session.global_step, "between")
                if not self.skips and verdict.status == "applied":
                    schedule.step()
                    draws.draw()
                    if session.global_step % 3 == 0:
                        assert replica.gather(session.global_step) == [session.global_step] * replica.count
        values = [value.double().view(-1) for value in model.state_dict().values()]
        return torch.cat(values).tolist()


def quiet(worker: int, step: int, moment: Moment) -> None:
    """Nobody dies."""


def plain(program: Program, mode: Mode, **options: Any) -> list[list[float]]:
    """The result without a death."""
    cluster = LocalCluster(2, 3, mode, losses=RESTARTS, **options)
    return cluster.run(lambda replica: program(replica, quiet))


def with_deaths(
    program: Program, mode: Mode, deaths: set[tuple[int, int, Moment]], pause: float = 0.3, **options: Any
) -> list[list[float]]:
    """The result when each (worker, step, moment) is the end of a process, and another one follows."""
    cluster = LocalCluster(2, 3, mode, losses=RESTARTS, **options)
    left = set(deaths)
    ended = threading.Semaphore(0)

    def kill(worker: int, step: int, moment: Moment) -> None:
        if (worker, step, moment) in left:
            left.discard((worker, step, moment))
            cluster.kill(worker)

    def mortal(replica: Replica) -> list[float]:
        try:
            return program(replica, kill)
        except Killed:
            again.append(replica.index)
            raise
        finally:
            ended.release()

    again: list[int] = []
    for worker in range(3):
        cluster.start(worker, mortal)
    running = 3
    while running:
        assert ended.acquire(timeout=20.0), cluster.outcome
        if again:
            time.sleep(pause)
            cluster.start(again.pop(), mortal)
        else:
            running -= 1
    outcome = cluster.finish()
    assert not outcome.errors, outcome.errors
    assert not left, f"nobody came there: {left}"
    return [outcome.results[worker] for worker in range(3)]


DEATHS = {
    "computing": {(1, 5, "computing")},
    "between": {(2, 5, "between")},
    "the chief, computing": {(0, 4, "computing")},
    "the chief, between": {(0, 6, "between")},
    "before the first push": {(1, 0, "computing")},
    "the chief before the first push": {(0, 0, "computing")},
    "twice at one place": {(1, 5, "computing"), (1, 5, "between")},
    "many": {(0, 3, "between"), (1, 3, "computing"), (2, 7, "between"), (1, 9, "between")},
}


@pytest.mark.parametrize("lane", ["queue", "memory"])
@pytest.mark.parametrize("deaths", DEATHS.values(), ids=DEATHS.keys())
def test_the_same_bits(deaths: set[tuple[int, int, Moment]], lane: Lane) -> None:
    program = Program()
    assert with_deaths(program, Sync(), deaths, lane=lane) == plain(program, Sync(), lane=lane)


@pytest.mark.parametrize("buffers", ["chief", "mean"])
def test_with_a_directory_and_running_statistics(tmp_path: Path, buffers: str) -> None:
    deaths = {(0, 5, "computing"), (1, 8, "between"), (2, 9, "computing")}
    got = with_deaths(Program(tmp_path / "a", buffers), Sync(), deaths)
    assert got == plain(Program(tmp_path / "b", buffers), Sync())


def test_a_checkpoint_of_a_job_with_deaths_is_that_of_one_without(tmp_path: Path) -> None:
    """A cut waits for the state of the process that takes a dead one's place."""
    deaths = {(1, 4, "between"), (0, 4, "between"), (2, 11, "between")}
    with_deaths(Program(tmp_path / "a"), Sync(), deaths)
    plain(Program(tmp_path / "b"), Sync())
    from argosy.checkpoint.tensor_reader import Checkpoint
    from argosy.session import own_state as own

    for step in (4, STEPS):
        one, other = (Checkpoint(tmp_path / name / f"step-{step}").index.replicas for name in "ab")
        assert one.keys() == other.keys()
        for worker in one:
            mine, theirs = own.decode(one[worker]), own.decode(other[worker])
            assert (mine.position, mine.kept, mine.groups) == (theirs.position, theirs.kept, theirs.groups)


def test_accumulation() -> None:
    program = Program(every=2)
    deaths = {(1, 3, "computing"), (0, 5, "between"), (2, 6, "computing")}
    assert with_deaths(program, Sync(), deaths) == plain(program, Sync())


def test_turns_without_a_gradient() -> None:
    program = Program(skips=True)
    deaths = {(1, 4, "between"), (0, 5, "between"), (2, 6, "computing")}
    assert with_deaths(program, Sync(), deaths) == plain(program, Sync())


def test_late_gradients_that_are_folded_count_once() -> None:
    """What a dead worker had brought to a step is brought again, and never twice."""
    program = Program()
    deaths = {(1, 5, "computing"), (0, 6, "between")}
    assert with_deaths(program, Sync(late="fold"), deaths) == plain(program, Sync(late="fold"))


def test_all_workers_at_once() -> None:
    program = Program()
    deaths = {(0, 5, "computing"), (1, 5, "computing"), (2, 5, "computing")}
    assert with_deaths(program, Sync(), deaths) == plain(program, Sync())


@pytest.mark.parametrize("saved", [False, True])
def test_a_chief_that_dies_while_it_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    """The next one registers all of it, and goes on from the checkpoint that the first has found."""
    folders: list[Path | None] = [tmp_path / "a", tmp_path / "b"] if saved else [None, None]
    for folder in folders if saved else ():
        plain(Program(folder, steps=6), Sync())
    expected = plain(Program(folders[0]), Sync())
    registered = StoreClient.register
    deaths = [0, 1]  # before it has said anything, and between two servers

    def dies(client: StoreClient, registrations: Any) -> None:
        if not deaths:
            registered(client, registrations)
            return
        if deaths.pop(0):
            header, tensors = registrations[1]
            client._talk.request(1, header, Registered, tensors)
        for channel in client._talk.channels:
            channel.cut()  # type: ignore[attr-defined]
        raise Killed

    monkeypatch.setattr(StoreClient, "register", dies)
    assert with_deaths(Program(folders[1]), Sync(), set()) == expected


def lose_one(cluster: LocalCluster, steps: int) -> list[int]:
    """Worker 1 dies, and nobody is started in its place; the steps that each of the others ends with."""

    def train(replica: Replica) -> int:
        model = nn.Linear(3, 1)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer, last_step=steps) as session:
            for number in session.batches(range(1000)):
                if replica.index == 1 and number == 3:
                    cluster.kill(1)
                optimizer.zero_grad()
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        return session.global_step

    for worker in range(3):
        cluster.start(worker, train)
    deadline = time.monotonic() + 20.0
    while len(cluster.outcome.results) < 2 and not cluster.outcome.errors:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    outcome = cluster.finish()
    assert not outcome.errors, outcome.errors
    return [outcome.results[worker] for worker in (0, 2)]


def test_who_is_not_started_again_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("argosy.server.missing_tasks.tasks_given_up", lambda: {"/job:worker/task:1"})
    assert lose_one(LocalCluster(2, 3, Sync(), losses=RESTARTS), 20) == [20, 20]
    said = capsys.readouterr().err
    assert "task:1 at localhost:2001 is gone; waiting for it to be started again\n" in said
    assert "task:1 at localhost:2001 is not started again; the job goes on without it\n" in said


def test_who_takes_too_long_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("argosy.server.missing_tasks.NOTICE_EVERY", 0.5)
    assert lose_one(LocalCluster(1, 3, Sync(), losses=RESTARTS, wait=2.0), 20) == [20, 20]
    said = capsys.readouterr().err
    assert "still waiting for /job:worker/task:1 at localhost:2001, " in said
    assert "task:1 at localhost:2001 is not back after 2 s; the job goes on without it\n" in said


def test_a_step_that_shrinks_waits_for_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    losses = LossPolicy(max_restarts=3, on_loss="shrink")
    assert lose_one(LocalCluster(2, 3, Sync(), losses=losses), 20) == [20, 20]
    assert "task:1 at localhost:2001 is gone; the job goes on without it\n" in capsys.readouterr().err


def test_an_asynchronous_worker_goes_on_where_it_was() -> None:
    """The last of all is waited for in every mode; no batch of it counts twice."""
    cluster = LocalCluster(1, 1, Async(), losses=RESTARTS)
    seen: list[int] = []
    dead = threading.Event()

    def train(replica: Replica, mortal: bool) -> int:
        model = nn.Linear(3, 1)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer, last_step=10) as session:
            for number in session.batches(range(1000)):
                seen.append(number)
                if mortal and number == 6:
                    dead.set()
                    cluster.kill(0)
                optimizer.zero_grad()
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        return session.global_step

    cluster.start(0, lambda replica: train(replica, True))
    assert dead.wait(10.0)
    time.sleep(0.5)
    cluster.start(0, lambda replica: train(replica, False))
    outcome = cluster.finish()
    assert not outcome.errors, outcome.errors
    assert outcome.results == {0: 10}
    # Batch 5 counts already: it is gone through once more, without a push.
    assert seen == [*range(7), *range(5, 10)]


def test_too_few_workers_end_the_job() -> None:
    cluster = LocalCluster(1, 3, Sync(), losses=LossPolicy(min_workers=3))

    def train(replica: Replica) -> None:
        model = nn.Linear(3, 1)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer, last_step=1000) as session:
            for number in session.batches(range(1000)):
                if replica.index == 2 and number == 5:
                    cluster.kill(2)
                optimizer.zero_grad()
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()

    outcome = cluster.run_to_the_end(train)
    assert outcome.errors
    for error in outcome.errors.values():
        assert isinstance(error, JobFailed)
        assert "only 2 workers are left of the 3 that --min-workers asks for" in str(error)
