"""A worker that is lost and will come back: the step waits for it, in every order of what can happen."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from argosy.modes import Async, Mode, Sync
from argosy.protocol.decisions import Answer, Apply, Decision, Forget, Part, Push
from argosy.update.admission import admission_for
from argosy.update.checkpoints import Checkpoints
from argosy.update.coordination import Arrived, Coordination, Held, Lost
from argosy.update.membership import Presence, Roster


def coordination(workers: int = 2, mode: Mode | None = None) -> Coordination:
    roster = Roster(workers)
    core = Coordination(1, roster, admission_for(mode or Sync(), roster, None))
    core.replaces = True
    for worker in range(workers):
        core.on(Arrived(worker))
    return core


def push(core: Coordination, worker: int, count: int = 1) -> list[Decision]:
    seq = core.base_seq(worker) + count
    return core.on(Held(None, worker, seq, Push(worker, seq, core.admission.step)))


def part(core: Coordination, worker: int, count: int = 1) -> Part:
    return Part(worker, core.base_seq(worker) + count)


def test_one_who_will_come_back_is_awaited_and_not_here() -> None:
    roster = Roster(2)
    roster.arrive(0)
    roster.arrive(1)
    roster.expect_back(1)
    assert roster[1] is Presence.RETURNING
    assert roster.awaited() == (0, 1)
    assert roster.returning() == [1]
    assert not roster.is_here(1)
    assert roster.has_a_part(1)
    assert roster.in_training() == [0, 1]
    assert roster.missing() == []
    assert roster.says(1) == "gone, to be started again"
    roster.expect_back(0)
    assert not roster.everyone_left()
    assert roster.abandoned_by() is None
    roster.lose(0)
    roster.lose(1)
    assert roster.remaining() == 0
    assert roster.abandoned_by() == 0


def test_the_step_waits_for_the_one_in_its_place() -> None:
    core = coordination()
    push(core, 0)
    assert core.on(Lost(1, returns=True)) == []
    assert core.waited_for() == [1]
    assert core.on(Arrived(1)) == []
    assert Apply(1, (part(core, 0), part(core, 1))) in push(core, 1)


def test_what_it_had_brought_makes_the_step_if_all_others_come_first() -> None:
    core = coordination()
    push(core, 1)
    mine = part(core, 1)
    core.on(Lost(1, returns=True))
    assert Apply(1, (part(core, 0), mine)) in push(core, 0)


@pytest.mark.parametrize("mode", [Sync(), Sync(late="fold"), Sync(aggregate=2, distinct=False, tokens=0)])
@pytest.mark.parametrize("noticed", [True, False])
def test_what_it_had_brought_is_forgotten_when_another_comes_in_its_place(mode: Mode, noticed: bool) -> None:
    core = coordination(mode=mode)
    push(core, 1)
    mine = part(core, 1)
    if noticed:
        core.on(Lost(1, returns=True))
    assert core.on(Arrived(1)) == [Forget(1, mine.seq)]
    assert push(core, 0) == []
    assert Apply(1, (part(core, 0), part(core, 1))) in push(core, 1)


def test_so_is_a_turn_without_a_gradient() -> None:
    core = coordination()
    seq = core.base_seq(1) + 1
    core.on(Held(None, 1, seq, Push(1, seq, 0, "skip")))
    core.on(Lost(1, returns=True))
    assert core.on(Arrived(1)) == [Forget(1, seq)]
    assert push(core, 0) == []


def test_one_who_is_given_up_is_not_waited_for() -> None:
    core = coordination()
    push(core, 0)
    core.on(Lost(1, returns=True))
    assert Apply(1, (part(core, 0),)) in core.on(Lost(1))
    assert core.roster[1] is Presence.GONE


def test_one_who_brings_nothing_more_is_not_waited_for() -> None:
    core = coordination()
    seq = core.base_seq(1) + 1
    core.on(Held(None, 1, seq, Push(1, seq, 0, "pull", last=True)))
    core.on(Lost(1, returns=True))
    assert core.roster[1] is Presence.GONE


def test_an_asynchronous_one_holds_nobody_back_meanwhile() -> None:
    core = coordination(mode=Async(max_staleness=0))
    seq = core.base_seq(1) + 1
    core.on(Held(None, 1, seq, Push(1, seq, 0, "pull")))  # it computes from version 0 now
    core.on(Lost(1, returns=True))
    other = core.base_seq(0) + 1
    assert Answer(0, other, "pulled", 0) in core.on(Held(None, 0, other, Push(0, other, 0, "pull")))


def test_a_checkpoint_asks_the_one_in_its_place_for_its_state() -> None:
    core = coordination()
    core.checkpoints = checkpoints = Checkpoints(1, 0)
    push(core, 1)
    core.on(Lost(1, returns=True))
    assert any(isinstance(each, Answer) and each.worker == 1 and each.cut for each in push(core, 0))
    assert checkpoints.wants(1)
    core.on(Arrived(1))
    seq = core.base_seq(1) + 1
    assert core.on(Held(None, 1, seq, Push(1, seq, 1, "pull"))) == [Answer(1, seq, "pulled", 1, cut=True)]


# --- every order ------------------------------------------------------------------------------------------
class World:
    """Three workers, each with at most one push under way; what may happen next."""

    def __init__(self, mode: Mode) -> None:
        self.core = coordination(3, mode)
        self.counts = [0, 0, 0]  # pushes of each one's present life
        self.waiting = [False, False, False]
        self.answered: set[tuple[int, int]] = set()
        self.applied: set[Part] = set()

    def events(self) -> Iterator[tuple[str, int]]:
        for worker in range(3):
            if self.core.roster.is_here(worker):
                yield "die", worker
                yield "come back unnoticed", worker
                if not self.waiting[worker]:
                    yield "push", worker
            else:
                yield "come back", worker

    def happen(self, what: str, worker: int) -> None:
        if what == "push":
            self.counts[worker] += 1
            self.waiting[worker] = True
            decisions = push(self.core, worker, self.counts[worker])
        elif what == "die":
            decisions = self.core.on(Lost(worker, returns=True))
        else:
            decisions = self.core.on(Arrived(worker))
            self.counts[worker], self.waiting[worker] = 0, False
        self.check(decisions)

    def check(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Apply):
                assert [part.worker for part in decision.parts] == [0, 1, 2], "a step without somebody"
                assert not self.applied.intersection(decision.parts)
                self.applied.update(decision.parts)
            if isinstance(decision, Answer):
                assert (decision.worker, decision.seq) not in self.answered
                self.answered.add((decision.worker, decision.seq))
                if decision.seq == self.core.base_seq(decision.worker) + self.counts[decision.worker]:
                    self.waiting[decision.worker] = False
            if isinstance(decision, Forget):
                assert (decision.worker, decision.seq) not in self.answered
        if all(self.waiting):
            raise AssertionError("everybody waits")


@pytest.mark.parametrize("mode", [Sync(), Sync(late="fold")])
def test_every_step_has_everybody_in_every_order(mode: Mode) -> None:
    worlds = [World(mode)]
    made = 0
    for _ in range(5):
        following = []
        for world in worlds:
            for event in world.events():
                after = copy.deepcopy(world)
                after.happen(*event)
                made = max(made, after.core.admission.step)
                following.append(after)
        worlds = following
    assert len(worlds) > 10_000
    assert made == 1
