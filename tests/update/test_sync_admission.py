"""Synchronous admission: which gradients make a step, and what its workers are told."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.modes import Sync
from argosy.protocol.decisions import Answer, Apply, Decision, Forget, Part, Push
from argosy.update.admission import SyncAdmission
from argosy.update.membership import Roster


class Table:
    """A policy, and pushes made short: each has the worker's next number and the current version."""

    def __init__(self, mode: Sync, workers: int, last_step: int | None = None) -> None:
        self.roster = Roster(workers)
        for worker in range(workers):
            self.roster.arrive(worker)
        self.core = SyncAdmission(mode, self.roster, last_step)
        self.seqs = [0] * workers

    def push(self, worker: int, version: int | None = None, weight: float = 1.0) -> list[Decision]:
        self.seqs[worker] += 1
        at = self.core.step if version is None else version
        return self.core.offer(Push(worker, self.seqs[worker], at, weight=weight))

    def skip(self, worker: int) -> list[Decision]:
        self.seqs[worker] += 1
        return self.core.offer(Push(worker, self.seqs[worker], self.core.step, "skip"))

    def finish(self, worker: int) -> list[Decision]:
        self.roster.finish(worker)
        return self.core.roster_changed()


def applied(decisions: list[Decision]) -> list[list[int]]:
    return [[part.worker for part in d.parts] for d in decisions if isinstance(d, Apply)]


def told(decisions: list[Decision]) -> dict[int, str]:
    return {d.worker: d.status for d in decisions if isinstance(d, Answer)}


# --- one from each ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_step_takes_one_from_each_in_order_of_worker_whoever_comes_first(order: tuple[int, ...]) -> None:
    table = Table(Sync(), 3)
    decisions = [d for worker in order for d in table.push(worker, weight=worker + 1.0)]
    assert decisions[0] == Apply(1, (Part(0, 1, 1.0), Part(1, 1, 2.0), Part(2, 1, 3.0)))
    assert decisions[1:] == [Answer(worker, 1, "applied", 1) for worker in range(3)]


def test_nobody_is_answered_before_the_step_is_made() -> None:
    table = Table(Sync(), 3)
    assert table.push(2) == []
    assert table.push(0) == []
    assert list(table.core.waited_for()) == [1]
    assert table.push(1) != []
    assert list(table.core.waited_for()) == []


def test_a_worker_that_has_not_arrived_is_waited_for() -> None:
    roster = Roster(2)
    roster.arrive(0)
    core = SyncAdmission(Sync(), roster, None)
    assert core.offer(Push(0, 1, 0)) == []
    assert list(core.waited_for()) == [1]


def test_a_pull_is_answered_at_once_and_takes_no_turn() -> None:
    table = Table(Sync(), 2)
    assert table.core.offer(Push(0, 1, 0, "pull")) == [Answer(0, 1, "pulled", 0)]
    assert table.push(1) == []
    table.seqs[0] = 1
    assert applied(table.push(0)) == [[0, 1]]


def test_a_skip_holds_nobody_up() -> None:
    table = Table(Sync(), 3)
    table.push(0)
    assert table.skip(1) == []
    decisions = table.push(2)
    assert applied(decisions) == [[0, 2]]
    assert told(decisions) == {0: "applied", 1: "skipped", 2: "applied"}


def test_a_step_that_all_skip_makes_no_update_and_lets_all_go_on() -> None:
    table = Table(Sync(), 2)
    assert table.skip(0) == []
    assert table.skip(1) == [Answer(0, 1, "skipped", 0), Answer(1, 1, "skipped", 0)]
    assert table.core.step == 0
    table.push(0)
    assert applied(table.push(1)) == [[0, 1]]


@pytest.mark.parametrize("pushed", [[], [0], [0, 1], [1]])
def test_a_worker_that_leaves_at_any_point_is_not_waited_for(pushed: list[int]) -> None:
    table = Table(Sync(), 3)
    decisions = [d for worker in pushed for d in table.push(worker)]
    decisions += table.finish(2)
    decisions += [d for worker in (0, 1) if worker not in pushed for d in table.push(worker)]
    assert applied(decisions) == [[0, 1]]
    assert told(decisions) == {0: "applied", 1: "applied"}


def test_the_gradient_of_a_worker_that_died_after_its_push_counts() -> None:
    table = Table(Sync(), 2)
    table.push(0)
    table.roster.lose(0)
    assert table.core.roster_changed() == []
    decisions = table.push(1)
    assert applied(decisions) == [[0, 1]]
    assert told(decisions) == {1: "applied"}


def test_a_worker_that_comes_back_still_counts_once_in_the_step() -> None:
    """Its second gradient of the same step takes the place of the first."""
    table = Table(Sync(aggregate=2), 3)
    table.push(0)
    table.roster.lose(0)
    table.core.roster_changed()
    table.roster.arrive(0)
    assert table.push(0) == [Forget(0, 1)]
    decisions = table.push(2)
    assert decisions[0] == Apply(1, (Part(0, 2), Part(2, 1)))
    assert told(decisions) == {0: "applied", 2: "applied"}


def test_the_skip_of_a_worker_that_died_is_forgotten() -> None:
    table = Table(Sync(), 3)
    table.skip(0)
    table.roster.lose(0)
    assert table.core.roster_changed() == [Forget(0, 1)]


def test_when_the_last_one_leaves_what_is_there_is_applied() -> None:
    table = Table(Sync(), 2)
    table.push(0)
    table.roster.lose(0)
    table.core.roster_changed()
    assert applied(table.finish(1)) == [[0]]
    assert table.core.roster_changed() == []


# --- the end ----------------------------------------------------------------------------------------------
def test_the_last_step_is_the_last_and_all_are_told() -> None:
    table = Table(Sync(), 2, last_step=2)
    decisions: list[Decision] = []
    for worker in (0, 1, 0, 1):
        decisions += table.push(worker)
    assert [d.step for d in decisions if isinstance(d, Apply)] == [1, 2]
    assert [d.stop for d in decisions if isinstance(d, Answer)] == [False, False, True, True]
    assert table.push(0) == [Forget(0, 3), Answer(0, 3, "dropped", 2, 0, stop=True)]
    assert table.skip(1) == [Answer(1, 3, "skipped", 2, stop=True)]
    assert table.core.offer(Push(1, 4, 2, "pull")) == [Answer(1, 4, "pulled", 2, stop=True)]
    assert table.finish(0) == []
    assert table.finish(1) == []


def test_a_late_one_after_the_end_is_dropped_also_where_late_ones_are_folded() -> None:
    table = Table(Sync(aggregate=1, late="fold"), 2, last_step=1)
    table.push(0)
    assert table.push(1, version=0) == [Forget(1, 1), Answer(1, 1, "dropped", 1, 1, stop=True)]


# --- the first k ------------------------------------------------------------------------------------------
def test_the_first_k_make_the_step_and_a_late_one_is_dropped_and_told() -> None:
    table = Table(Sync(aggregate=2), 3)
    table.push(2)
    assert applied(table.push(0)) == [[0, 2]]
    assert table.push(1, version=0) == [Forget(1, 1), Answer(1, 1, "dropped", 1, 1)]
    table.push(1)
    assert applied(table.push(0)) == [[0, 1]]


def test_a_late_one_is_folded_into_the_next_step_and_told() -> None:
    table = Table(Sync(aggregate=2, late="fold"), 3)
    table.push(2)
    table.push(0)
    assert table.push(1, version=0) == [Answer(1, 1, "folded", 1, 1)]
    assert applied(table.push(1)) == []
    decisions = table.push(0)
    assert decisions[0] == Apply(2, (Part(0, 2), Part(1, 1), Part(1, 2)))
    assert told(decisions) == {0: "applied", 1: "applied"}


def test_a_folded_one_does_not_fill_the_quota() -> None:
    table = Table(Sync(aggregate=2, late="fold"), 2)
    table.push(0)
    table.push(1)
    table.push(0, version=0)
    assert table.push(0) == []


def test_a_folded_one_is_not_lost_when_everybody_leaves() -> None:
    table = Table(Sync(aggregate=1, late="fold"), 2)
    table.push(0)
    assert told(table.push(1, version=0)) == {1: "folded"}
    assert table.finish(0) == []
    assert applied(table.finish(1)) == [[1]]


def test_a_folded_one_waits_through_a_step_that_all_skip() -> None:
    table = Table(Sync(aggregate=1, late="fold"), 2)
    table.push(0)
    table.push(1, version=0)
    assert applied([*table.skip(0), *table.skip(1)]) == []
    assert applied(table.push(0)) == [[0, 1]]


def test_a_late_skip_is_just_answered() -> None:
    table = Table(Sync(aggregate=1, late="fold"), 2)
    table.push(0)
    assert table.core.offer(Push(1, 1, 0, "skip")) == [Answer(1, 1, "skipped", 1)]


def test_fewer_than_k_left_make_the_step_among_themselves() -> None:
    table = Table(Sync(aggregate=3), 4)
    table.push(0)
    table.finish(3)
    table.finish(2)
    assert applied(table.push(1)) == [[0, 1]]


# --- any k, tokens ----------------------------------------------------------------------------------------
def test_one_worker_may_fill_a_step_with_tokens() -> None:
    table = Table(Sync(aggregate=3, distinct=False, tokens=2), 2)
    assert told(table.push(0)) == {0: "held"}
    assert told(table.push(0)) == {0: "held"}
    decisions = table.push(0)
    assert applied(decisions) == [[0, 0, 0]]
    assert told(decisions) == {0: "applied"}


def test_a_worker_waits_when_its_tokens_are_used_up() -> None:
    table = Table(Sync(aggregate=4, distinct=False, tokens=1), 2)
    assert told(table.push(0)) == {0: "held"}
    assert table.push(0) == []
    assert list(table.core.waited_for()) == [1]
    assert told(table.push(1)) == {1: "held"}
    decisions = table.push(1)
    assert applied(decisions) == [[0, 0, 1, 1]]
    assert told(decisions) == {0: "applied", 1: "applied"}


def test_tokens_that_are_not_said_are_as_many_as_needed() -> None:
    table = Table(Sync(aggregate=5, distinct=False), 2)
    decisions = [d for worker in (0, 0, 0, 1, 1) for d in table.push(worker)]
    assert applied(decisions) == [[0, 0, 0, 1, 1]]


def test_a_worker_that_waits_runs_ahead_when_the_others_leave() -> None:
    """With fewer workers each must give more: one that waits is let go, or nobody would fill the step."""
    table = Table(Sync(aggregate=4, distinct=False), 2)
    table.push(0)
    assert table.push(0) == []
    assert table.finish(1) == [Answer(0, 2, "held", 0)]
    table.push(0)
    assert applied(table.push(0)) == [[0, 0, 0, 0]]


def test_one_who_ran_ahead_of_the_step_is_late() -> None:
    table = Table(Sync(aggregate=2, distinct=False, tokens=1), 2)
    table.push(0)
    table.push(1)
    assert told(table.push(0, version=0)) == {0: "dropped"}


def test_a_skip_takes_a_token() -> None:
    table = Table(Sync(aggregate=2, distinct=False, tokens=1), 1)
    assert told(table.skip(0)) == {0: "skipped"}
    assert applied(table.push(0)) == [[0]]


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_every_gradient_is_accounted_for(data: st.DataObject) -> None:
    """Random modes and orders of pushes, skips and farewells; each push gets one answer, the right one."""
    workers = data.draw(st.integers(1, 4))
    distinct = data.draw(st.booleans())
    aggregate = data.draw(st.none() | st.integers(1, workers if distinct else 2 * workers))
    late = data.draw(st.sampled_from(["drop", "fold"]))
    last_step = data.draw(st.none() | st.integers(1, 4))
    table = Table(Sync(aggregate=aggregate, late=late, distinct=distinct), workers, last_step)  # type: ignore[arg-type]
    versions = [0] * workers
    free, used = set(range(workers)), set()
    answers: dict[tuple[int, int], Answer] = {}
    actions = st.sampled_from(["gradient", "gradient", "gradient", "skip", "leave"])
    while free:
        worker = data.draw(st.sampled_from(sorted(free)))
        action = data.draw(actions) if sum(table.seqs) < 30 else "leave"
        free.discard(worker)
        if action == "leave":
            decisions = table.finish(worker)
        else:
            table.seqs[worker] += 1
            kind = "skip" if action == "skip" else "gradient"
            decisions = table.core.offer(Push(worker, table.seqs[worker], versions[worker], kind))  # type: ignore[arg-type]
        for decision in decisions:
            if isinstance(decision, Apply):
                assert list(decision.parts) == sorted(decision.parts)
                used |= {(part.worker, part.seq) for part in decision.parts}
            elif isinstance(decision, Answer):
                assert answers.setdefault((decision.worker, decision.seq), decision) is decision
                versions[decision.worker] = decision.step
                if not decision.stop:
                    free.add(decision.worker)
    assert sum(table.seqs) == len(answers), "somebody waits for ever"
    assert used == {k for k, answer in answers.items() if answer.status in ("applied", "held", "folded")}
    assert last_step is None or table.core.step <= last_step
