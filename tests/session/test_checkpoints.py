"""Sessions that save and go on, on servers and alone, in one process; only a disk's errors are made up."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_trainings import Tied, alone, same, training
from torch import nn

import argosy
from argosy.checkpoint import disk, folder
from argosy.checkpoint.index import read
from argosy.entry import Replica
from argosy.errors import ConfigError, JobFailed, SaveFailed
from argosy.hooks import Hook, SaveCheckpoint
from argosy.modes import Async, Mode, Sync
from argosy.session import own_state as own
from argosy.session.session import Session
from argosy.store.placement import RoundRobin, Split
from argosy.testing import LocalCluster


@pytest.mark.parametrize("mode", [Sync(), Async()])
def test_a_checkpoint_holds_what_the_workers_have(mode: Mode, tmp_path: Path) -> None:
    first, second = LocalCluster(2, 2, mode).run(training(9, directory=tmp_path, save_every=4))
    assert same(first, second)
    assert [each.step for each in folder.saved(tmp_path)][-1] == 9
    loaded = argosy.load(tmp_path)
    assert same(loaded, {name: loaded[name] for name in first})
    assert same(loaded, first)
    model = Tied()
    model.load_state_dict(loaded)
    index = read(tmp_path / "step-9")
    assert index.tied == {"out.weight": "embed.weight"}
    assert index.optimizer.name == "AdamW"
    assert set(index.replicas) == {0, 1}


def test_every_so_many_steps_and_the_newest_stay(tmp_path: Path) -> None:
    seen: set[int] = set()

    class Until(Hook):
        """Steps are faster than a disk: go on until four have been saved."""

        def after_step(self, session: Session) -> None:
            seen.update(each.step for each in folder.saved(tmp_path))
            if len(seen) == 4 and session.replica.is_chief:
                session.stop()

    LocalCluster(2, 2, Sync()).run(training(10**6, [Until()], directory=tmp_path, save_every=4, keep=3))
    kept = [each.step for each in folder.saved(tmp_path)]
    assert len(kept) == 3
    assert kept[-1] >= max(seen)
    assert min(seen) == 4  # those after it may be put off until the one before is written


RESUMES = {
    "same": (2, Sync(), None),
    "one server": (1, Sync(), None),
    "three servers": (3, Sync(), RoundRobin()),
    "split": (3, Sync(), Split(2)),
    "asynchronous": (2, Async(), None),
}


@pytest.mark.parametrize(("servers", "mode", "placement"), RESUMES.values(), ids=RESUMES)
def test_any_number_of_servers_goes_on_from_it(
    servers: int, mode: Mode, placement: Any, tmp_path: Path
) -> None:
    LocalCluster(2, 2, Sync()).run(training(6, directory=tmp_path / "a", save_every=2))
    whole = LocalCluster(2, 2, Sync()).run(training(12))[0]
    went_on = LocalCluster(servers, 2, mode).run(training(12, directory=tmp_path / "a", placement=placement))[
        0
    ]
    if isinstance(mode, Sync):
        for name, value in whole.items():
            assert torch.allclose(went_on[name].double(), value.double(), atol=1e-6), name
    if servers == 2 and isinstance(mode, Sync):
        assert same(whole, went_on)
    assert [each.step for each in folder.saved(tmp_path / "a")][-1] == 12


def test_resumed_in_another_order_of_arrival_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    def shuffled(seed: int) -> Callable[[int, int], list[int]]:
        return lambda server, turn: random.Random(f"{seed}/{server}/{turn}").sample(range(3), 3)

    whole = LocalCluster(2, 3, Sync(), order=shuffled(1)).run(training(40))
    for number, last_step in enumerate((20, 40), start=2):
        program = training(last_step, directory=tmp_path, save_every=7)
        resumed = LocalCluster(2, 3, Sync(), order=shuffled(number)).run(program)
    assert all(same(mine, theirs) for mine, theirs in zip(whole, resumed, strict=True))


def test_alone_and_on_servers_are_one_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = alone(training(9), monkeypatch)
    alone(training(4, directory=tmp_path), monkeypatch)
    there = LocalCluster(2, 1, Sync()).run(training(7, directory=tmp_path))[0]
    back = alone(training(9, directory=tmp_path), monkeypatch)
    assert there.keys() == back.keys() == whole.keys()
    for name, value in whole.items():
        # Servers keep the bfloat16 layer in float32.
        assert torch.allclose(back[name].double(), value.double(), atol=2e-2), name
    assert same(argosy.load(tmp_path), back)


def test_a_step_that_was_reached_ends_the_job_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        LocalCluster(1, 2, Sync()).run(training(3, directory=tmp_path))
    assert "step 3 is reached already: nothing is left to train" in capsys.readouterr().err


def test_begins_and_goes_on_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    LocalCluster(1, 1, Sync()).run(training(3, directory=tmp_path))
    assert f"begins at step 0: no checkpoint in {tmp_path}" in capsys.readouterr().err
    (tmp_path / "step-9").mkdir()
    LocalCluster(1, 1, Sync()).run(training(4, directory=tmp_path))
    told = capsys.readouterr().err
    assert f"damaged checkpoint: {tmp_path / 'step-9' / 'index.json'}: No such file" in told
    assert f"goes on from step 3: {tmp_path / 'step-3'}" in told


def test_a_worker_that_fails_leaves_the_checkpoints_as_they_are(tmp_path: Path) -> None:
    class Fail(Hook):
        def after_step(self, session: Session) -> None:
            if session.global_step == 5:
                raise ValueError("boom")

    for cluster in (LocalCluster(2, 2, Sync()), LocalCluster(2, 2, Sync())):
        outcome = cluster.run_to_the_end(training(9, [Fail()], directory=tmp_path, save_every=2))
        assert any("boom" in str(error) for error in outcome.errors.values()), outcome
    steps = [each.step for each in folder.saved(tmp_path)]
    assert steps
    assert max(steps) < 5
    assert not folder.is_written_to(tmp_path)


# --- what is refused, and what goes wrong -----------------------------------------------------------------
def test_two_jobs_on_one_directory(tmp_path: Path) -> None:
    class Second(Hook):
        def begin(self, session: Session) -> None:
            outcome = LocalCluster(1, 1).run_to_the_end(training(1, directory=tmp_path))
            assert "one that no other job writes to" in str(outcome.errors["/job:worker/task:0"])
            assert isinstance(outcome.errors["/job:worker/task:0"], ConfigError)

    LocalCluster(1, 1).run(training(2, [Second()], directory=tmp_path))


def test_a_directory_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    outcome = LocalCluster(2, 2).run_to_the_end(training(1, directory=tmp_path / "file"))
    error = outcome.errors["/job:worker/task:0"]
    assert isinstance(error, ConfigError)
    assert "directory: expected a place to write to" in str(error)
    with pytest.raises(ConfigError, match="directory: expected a place to write to"):
        alone(training(1, directory=tmp_path / "file"), monkeypatch)


def test_a_full_disk_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    LocalCluster(2, 2, Sync()).run(training(2, directory=tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    class Fill(Hook):
        def begin(self, session: Session) -> None:
            monkeypatch.setattr("argosy.checkpoint.disk.write", full)

    outcome = LocalCluster(2, 2, Sync()).run_to_the_end(
        training(6, [Fill()], directory=tmp_path, save_every=2)
    )
    finals = outcome.results
    assert same(finals[0], LocalCluster(2, 2, Sync()).run(training(6))[0])
    assert "CANNOT SAVE step" in (told := capsys.readouterr().err)
    assert "No space left on device; earlier checkpoints are kept" in told
    failure = outcome.errors["/job:ps/task:0"]
    assert isinstance(failure, SaveFailed)
    assert (failure.step, failure.saved, failure.directory) == (6, 2, str(tmp_path))
    assert isinstance(outcome.errors["/job:ps/task:1"], JobFailed)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == [".lock", "events.jsonl", "step-2"]
    assert argosy.load(tmp_path).keys() == finals[0].keys()


@pytest.mark.parametrize("kind", ["alone", "servers"])
def test_a_last_step_that_could_not_be_saved_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    create, tried = disk.create, list[Path]()

    def full_once(path: Path) -> int:
        if "step-6" in str(path) and path.suffix == ".safetensors":
            tried.append(path)
            if tried.count(path) == 1:
                raise OSError(28, "No space left on device")
        return create(path)

    monkeypatch.setattr("argosy.checkpoint.disk.create", full_once)
    program = training(6, directory=tmp_path, save_every=6)
    if kind == "alone":
        alone(program, monkeypatch)
    else:
        LocalCluster(1, 2, Sync()).run(program)
    assert len(tried) == 2
    assert "CANNOT SAVE step 6" in capsys.readouterr().err
    assert (tmp_path / "step-6").is_dir()


def test_another_model_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(replica: Replica) -> None:
        model = nn.Linear(3, 2)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer, directory=tmp_path, last_step=1) as session:
            for _ in session.batches(range(3)):
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()

    alone(training(1, directory=tmp_path), monkeypatch)
    outcome = LocalCluster(2, 1).run_to_the_end(small)
    assert "it is of another model" in str(outcome.errors["/job:worker/task:0"])
    with pytest.raises(ConfigError, match=r"parameter weight: expected none, as in .*step-1"):
        alone(small, monkeypatch)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"save_every": 0}, "save_every"),
        ({"save_seconds": 0}, "save_seconds"),
        ({"keep": 0}, "keep"),
        ({"average": 1.0}, "average"),
        ({"hyperparameters": "mine"}, "hyperparameters"),
        ({"directory": None, "save_every": 3}, "directory"),
        ({"initial": "nowhere.pt"}, "initial"),
    ],
)
def test_bad_arguments_are_refused(
    options: dict[str, Any], field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: expected"):
        alone(training(1, **{"directory": tmp_path, **options}), monkeypatch)


# --- beginning from a file --------------------------------------------------------------------------------
def test_a_plain_state_dict_to_begin_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Tied()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.25)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for initial in LocalCluster(2, 2).run(training(0, initial=tmp_path / "model.pt")):
        assert same(initial, model.state_dict())
    assert same(alone(training(0, initial=tmp_path / "model.pt"), monkeypatch), model.state_dict())
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.pt")
    with pytest.raises(ConfigError, match="initial: expected a state_dict of this model"):
        alone(training(0, initial=tmp_path / "other.pt"), monkeypatch)
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(ConfigError, match="initial: expected"):
        alone(training(0, initial=tmp_path / "text.pt"), monkeypatch)


# --- asking for one ---------------------------------------------------------------------------------------
def test_a_hook_may_ask_for_a_checkpoint(tmp_path: Path) -> None:
    LocalCluster(1, 1).run(training(7, [SaveCheckpoint(steps=4)], directory=tmp_path))
    assert [each.step for each in folder.saved(tmp_path)] == [5, 7]


def test_saving_needs_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="SaveCheckpoint: expected a session with a directory"):
        alone(training(1, [SaveCheckpoint(seconds=1)]), monkeypatch)
    with pytest.raises(ConfigError, match="either seconds or steps"):
        SaveCheckpoint()


def test_a_checkpoint_is_published_with_the_state_of_a_worker_that_is_slow_to_give_it(tmp_path: Path) -> None:
    """Its files are written long before; without that state the worker could not go on from there."""

    class Slow:
        def __init__(self, replica: Replica) -> None:
            self._replica = replica
            self.step = 0

        def state_dict(self) -> dict[str, Any]:
            until = time.monotonic() + 1.0
            while self._replica.index == 1 and time.monotonic() < until and not folder.saved(tmp_path):
                time.sleep(0.01)
            return {"step": self.step}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.step = state["step"]

    def program(replica: Replica) -> None:
        model = nn.Linear(1, 1)
        slow = Slow(replica)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(
            model, optimizer, last_step=2, directory=tmp_path, save_every=1, state={"slow": slow}
        ) as session:
            for _ in session.batches(range(9)):
                model(torch.ones(1, 1)).backward()
                slow.step = optimizer.step().global_step

    LocalCluster(2, 2, Sync()).run(program)
    first = read(tmp_path / "step-1")
    states = {worker: own.decode(state).kept["slow"]["step"] for worker, state in first.replicas.items()}
    assert states == {0: 1, 1: 1}
