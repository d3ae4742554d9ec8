"""Thousands of schedules of a whole job on paper, faults included, against the design's invariants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from invariants import run
from simulator import Job, Scenario

from argosy.modes import Async, Mode, Sync
from argosy.update.checkpoints import Checkpoints
from argosy.update.log import Log, LogReader

MODES: dict[str, Mode] = {
    "async": Async(),
    "async bound 0": Async(max_staleness=0),
    "async bound 1": Async(max_staleness=1),
    "async bound 3": Async(max_staleness=3),
    "sync": Sync(),
    "sync 2 drop": Sync(aggregate=2),
    "sync 2 fold": Sync(aggregate=2, late="fold"),
    "sync 1 fold": Sync(aggregate=1, late="fold"),
    "any 2, tokens 0": Sync(aggregate=2, distinct=False, tokens=0),
    "any 4, tokens 2": Sync(aggregate=4, distinct=False, tokens=2),
    "any 5, tokens as needed": Sync(aggregate=5, distinct=False),
    "any 5 fold": Sync(aggregate=5, distinct=False, late="fold"),
    "any n": Sync(distinct=False),
}
SCHEDULES = 130  # of each scenario in each mode: 20,280 in all


def scenarios(mode: Mode) -> dict[str, Scenario]:
    """From calm to stormy."""
    return {
        "calm": Scenario(mode),
        "calm to the last step": Scenario(mode, last_step=4),
        "skips and pulls": Scenario(mode, skips=0.3, pulls=0.1, last_step=5),
        "broken lines": Scenario(mode, servers=3, loss=0.05, duplication=0.05),
        "leases that run out": Scenario(mode, servers=3, expiry=0.03, loss=0.02),
        "deaths": Scenario(mode, servers=3, death=0.03),
        "storm": Scenario(
            mode, death=0.03, loss=0.03, duplication=0.03, skips=0.2, pulls=0.1, last_step=7, lives=4
        ),
        "broken links between servers": Scenario(mode, servers=3, severance=0.05, loss=0.02, last_step=7),
        "doubled on links between servers": Scenario(mode, servers=3, doubling=0.1, death=0.02),
        "everything at once": Scenario(
            mode,
            servers=3,
            severance=0.03,
            doubling=0.03,
            death=0.02,
            loss=0.03,
            duplication=0.03,
            full_disk=0.05,
            expiry=0.02,
            skips=0.1,
            pulls=0.1,
            lives=4,
        ),
        "full disks": Scenario(mode, full_disk=0.2, death=0.02, loss=0.03, last_step=9),
        "two workers, one server": Scenario(mode, workers=2, servers=1, death=0.03, skips=0.1),
    }


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
def test_every_schedule_keeps_the_invariants(mode: Mode) -> None:
    for name, scenario in scenarios(mode).items():
        for seed in range(SCHEDULES):
            try:
                run(scenario, seed)
            except Exception as error:
                raise AssertionError(f"{name}, seed {seed}: {error!r}") from error


def played(mode: Mode, **changes: float) -> list[Job]:
    return [run(Scenario(mode, **changes), seed) for seed in range(20)]  # type: ignore[arg-type]


def test_the_simulator_is_not_blind() -> None:
    """Schedules do reach what the invariants are about."""
    storm = played(Sync(aggregate=2, late="fold"), death=0.03, skips=0.2, lives=3)
    statuses = {answer.status for job in storm for answer in job.answers.values()}
    assert statuses >= {"applied", "folded", "skipped", "pulled"}
    assert any(count > 1 for job in storm for count in job.counts)
    stale = [a.staleness for job in played(Async(), pushes=12) for a in job.answers.values()]
    assert max(stale) > 3
    assert any(answer.stop for job in played(Sync(), last_step=2) for answer in job.answers.values())


def test_a_checkpoint_without_a_workers_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is published before a slow worker has given its state is caught by some schedule."""
    ready = Checkpoints.ready
    monkeypatch.setattr(Checkpoints, "ready", lambda self, present, now: ready(self, (), now))
    with pytest.raises((AssertionError, KeyError)):
        played(Sync(), servers=2)


def test_a_fault_in_the_core_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that does not wait for every server is caught by some schedule."""
    started = Job.__init__

    def careless(self: Job, scenario: Scenario, seed: int) -> None:
        started(self, scenario, seed)
        self.core._servers = 1

    monkeypatch.setattr(Job, "__init__", careless)
    found = 0
    for seed in range(50):
        try:
            run(Scenario(Sync(), servers=3), seed)
        except (AssertionError, KeyError):
            found += 1
    assert found


def plant_no_continuity(patch: pytest.MonkeyPatch) -> None:
    def careless(reader: LogReader, epoch: int, index: int) -> bool:
        reader.taken = max(reader.taken, index)
        return True

    patch.setattr(LogReader, "take", careless)


def plant_no_deduplication(patch: pytest.MonkeyPatch) -> None:
    def careless(reader: LogReader, epoch: int, index: int) -> bool:
        if index > reader.taken + 1:
            return False
        reader.taken = max(reader.taken, index)
        return True

    patch.setattr(LogReader, "take", careless)


def plant_no_asking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogReader, "lags", lambda reader, epoch, last: False)
    patch.setattr(LogReader, "misses", lambda reader, epoch, index: False)


def plant_early_forgetting(patch: pytest.MonkeyPatch) -> None:
    """Entries are let go when the first follower has them, and not the last."""
    acknowledge = Log.acknowledge

    def careless(log: Log[None], follower: int, index: int) -> None:
        for each in list(log._acknowledged):
            acknowledge(log, each, index)

    patch.setattr(Log, "acknowledge", careless)


def plant_acknowledging_unseen(patch: pytest.MonkeyPatch) -> None:
    """A follower acknowledges what it was told of, and not what it has taken."""
    said = Job.say_state

    def careless(job: Job, speaker: int, listener: int, again: bool = False) -> None:
        job.logs[listener].acknowledge(speaker, job.logs[listener].last)
        said(job, speaker, listener, again)

    patch.setattr(Job, "say_state", careless)


@pytest.mark.parametrize(
    "plant",
    [
        plant_no_continuity,
        plant_no_deduplication,
        plant_no_asking,
        plant_early_forgetting,
        plant_acknowledging_unseen,
    ],
)
def test_a_careless_log_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Each of these bugs makes some schedule end wrong, or never."""
    plant(monkeypatch)
    monkeypatch.setattr(Job, "MOST_TURNS", 5_000)
    found = 0
    for seed in range(50):
        try:
            run(Scenario(Async(), servers=3, severance=0.03, doubling=0.03, last_step=7), seed)
        except (AssertionError, KeyError):
            found += 1
    assert found


def test_the_same_seed_plays_the_same_schedule() -> None:
    storm = Scenario(Async(max_staleness=2), death=0.05, loss=0.05, duplication=0.05, skips=0.2)
    assert run(storm, 7).answers == run(storm, 7).answers
