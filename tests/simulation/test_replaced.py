"""Thousands of schedules in which workers die anywhere and are replaced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from replacing import ReplacingJob, play
from simulator import Scenario

from argosy.modes import Async, Mode, Sync
from argosy.server.replica_states import ReplicaStates
from argosy.update.admission import SyncAdmission
from argosy.update.coordination import Coordination, Lost

EXACT: dict[str, Mode] = {"sync": Sync(), "sync fold": Sync(late="fold")}
OTHERS: dict[str, Mode] = {
    "sync 2 drop": Sync(aggregate=2),
    "sync 2 fold": Sync(aggregate=2, late="fold"),
    "any 2, tokens 0": Sync(aggregate=2, distinct=False, tokens=0),
    "any 4, tokens 2": Sync(aggregate=4, distinct=False, tokens=2),
    "any n": Sync(distinct=False),
    "async": Async(),
    "async bound 1": Async(max_staleness=1),
}
SCHEDULES = 60


def scenarios(mode: Mode) -> dict[str, Scenario]:
    return {
        "calm": Scenario(mode, skips=0.2),
        "deaths": Scenario(mode, servers=3, death=0.04),
        "to the last step": Scenario(mode, death=0.04, last_step=5),
        "leases that run out": Scenario(mode, servers=3, expiry=0.04, loss=0.02),
        "storm": Scenario(mode, death=0.04, loss=0.03, duplication=0.03, skips=0.2, full_disk=0.05),
        "everything at once": Scenario(
            mode,
            servers=3,
            severance=0.03,
            doubling=0.03,
            death=0.03,
            loss=0.03,
            duplication=0.03,
            expiry=0.02,
            skips=0.1,
        ),
        "alone": Scenario(mode, workers=1, servers=2, death=0.05),
    }


@pytest.mark.parametrize("mode", [*EXACT.values(), *OTHERS.values()], ids=[*EXACT, *OTHERS])
def test_replaced_workers_give_the_sums_of_those_who_did_not_die(mode: Mode) -> None:
    for name, scenario in scenarios(mode).items():
        for seed in range(SCHEDULES):
            try:
                play(scenario, seed)
            except Exception as error:
                raise AssertionError(f"{name}, seed {seed}: {error!r}") from error


@pytest.mark.parametrize("mode", [*EXACT.values(), *OTHERS.values()], ids=[*EXACT, *OTHERS])
def test_workers_that_are_given_up(mode: Mode) -> None:
    for seed in range(SCHEDULES):
        play(Scenario(mode, servers=3, death=0.05, skips=0.1), seed, giving_up=0.1)


def test_schedules_reach_what_this_is_about() -> None:
    jobs = [play(Scenario(Sync(), death=0.05), seed) for seed in range(30)]
    assert sum(count - 1 for job in jobs for count in job.counts) > 30
    assert any(job.given_up for job in [play(Scenario(Sync(), death=0.05), s, 0.2) for s in range(30)])


def plant_shrinking(patch: pytest.MonkeyPatch) -> None:
    """A step goes on without one who will come back."""
    patch.setattr(ReplacingJob, "loss", lambda job, worker: Lost(worker))


def plant_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """One who is back before it was missed is taken out of the step first."""
    arrive = Coordination._arrive

    def careless(core: Coordination, worker: int) -> list:  # type: ignore[type-arg]
        core.replaces = False
        try:
            return arrive(core, worker)
        finally:
            core.replaces = True

    patch.setattr(Coordination, "_arrive", careless)


def plant_no_withdrawal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SyncAdmission, "withdraw", lambda admission, worker: [])


def plant_no_counting(patch: pytest.MonkeyPatch) -> None:
    """A turn that counts is made again."""
    patch.setattr(ReplicaStates, "count", lambda states, decisions: None)


def plant_counting_too_early(patch: pytest.MonkeyPatch) -> None:
    """A turn that is not decided is passed over."""
    bring = ReplicaStates.bring

    def careless(states: ReplicaStates, worker: int, seq: int, carried: object) -> None:
        bring(states, worker, seq, carried)  # type: ignore[arg-type]
        states._decide(worker, seq)

    patch.setattr(ReplicaStates, "bring", careless)


@pytest.mark.parametrize(
    "plant",
    [plant_shrinking, plant_unnoticed, plant_no_withdrawal, plant_no_counting, plant_counting_too_early],
)
def test_careless_replacing_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(ReplacingJob, "MOST_TURNS", 5_000)
    found = 0
    for seed in range(100):
        try:
            play(Scenario(Sync(), servers=2, death=0.04, expiry=0.01, skips=0.1), seed)
        except (AssertionError, KeyError):
            found += 1
    assert found
