"""Coordination: a push counts when every server holds it, once, in the life that it was sent in."""

from __future__ import annotations

import itertools

import pytest

from argosy.modes import Async, Mode, Sync
from argosy.protocol.decisions import Answer, Apply, Forget, Part, Push
from argosy.update.admission import admission_for
from argosy.update.coordination import Arrived, Coordination, Finished, Held, Lost
from argosy.update.membership import Presence, Roster


def coordination(servers: int, workers: int = 2, mode: Mode | None = None) -> Coordination:
    roster = Roster(workers)
    core = Coordination(servers, roster, admission_for(mode or Async(), roster, None))
    for worker in range(workers):
        assert core.on(Arrived(worker)) == []
    return core


def held(core: Coordination, server: int, worker: int, count: int = 1) -> Held:
    """A server's notice of a worker's push number `count` in its present life; server 0 says what it is."""
    seq = core.base_seq(worker) + count
    return Held(server, worker, seq, Push(worker, seq, core.admission.step) if server == 0 else None)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_push_is_offered_when_all_servers_hold_it(order: tuple[int, ...]) -> None:
    core = coordination(3)
    assert core.on(held(core, order[0], 0)) == []
    assert core.on(held(core, order[1], 0)) == []
    seq = core.base_seq(0) + 1
    assert core.on(held(core, order[2], 0)) == [Apply(1, (Part(0, seq),)), Answer(0, seq, "applied", 1)]


def test_the_same_server_twice_is_not_two_servers() -> None:
    core = coordination(2)
    assert core.on(held(core, 0, 0)) == []
    assert core.on(held(core, 0, 0)) == []
    assert core.on(held(core, 1, 0)) != []


def test_a_push_that_was_offered_is_not_offered_again() -> None:
    core = coordination(1)
    assert core.on(held(core, 0, 0)) != []
    assert core.on(held(core, 0, 0)) == []
    assert core.admission.step == 1
    assert core.on(held(core, 0, 0, count=2)) != []


def test_pushes_of_two_workers_do_not_mix() -> None:
    core = coordination(2)
    assert core.on(held(core, 0, 0)) == []
    assert core.on(held(core, 1, 1)) == []
    assert core.on(held(core, 0, 1)) != []


@pytest.mark.parametrize("event", [Lost(0), Finished(0)])
def test_what_only_some_servers_hold_of_a_worker_that_left_is_forgotten(event: Lost | Finished) -> None:
    core = coordination(3)
    core.on(held(core, 1, 0))
    assert core.on(event) == [Forget(0, core.base_seq(0) + 1)]


def test_what_still_arrives_of_a_worker_that_left_is_forgotten_too() -> None:
    core = coordination(2)
    late = held(core, 1, 0)
    core.on(Lost(0))
    assert core.on(late) == [Forget(0, late.seq)]
    core.on(Arrived(0))
    assert core.on(late) == [Forget(0, late.seq)]
    assert core.admission.step == 0


def test_what_counts_already_is_not_forgotten_when_it_arrives_again() -> None:
    core = coordination(1, mode=Sync())
    push = held(core, 0, 0)
    core.on(push)
    core.on(Lost(0))
    assert core.on(push) == []
    decisions = core.on(held(core, 0, 1))
    assert Apply(1, (Part(0, push.seq), Part(1, core.base_seq(1) + 1))) in decisions


def test_a_returning_worker_counts_from_above_all_it_sent_before() -> None:
    core = coordination(1)
    first = core.base_seq(0)
    core.on(Held(0, 0, first + 1000, Push(0, first + 1000, 0)))
    core.on(Lost(0))
    core.on(Arrived(0))
    assert core.base_seq(0) > first + 1000
    assert core.base_seq(1) == first
    assert core.on(held(core, 0, 0)) != []


def test_one_who_is_back_before_it_was_missed_starts_a_new_life() -> None:
    core = coordination(2)
    partial = held(core, 0, 0)
    core.on(partial)
    assert core.on(Arrived(0)) == [Forget(0, partial.seq)]
    assert core.roster[0] is Presence.PRESENT
    assert core.on(Held(1, 0, partial.seq)) == [Forget(0, partial.seq)]
    core.on(held(core, 0, 0))
    assert core.on(held(core, 1, 0)) != []


def test_one_who_is_back_before_it_was_missed_leaves_no_deadline_behind() -> None:
    core = coordination(1, mode=Async(max_staleness=0))
    seq = core.base_seq(0) + 1
    core.on(Held(0, 0, seq, Push(0, seq, 0, "pull")))
    core.on(Arrived(0))
    other = core.base_seq(1) + 1
    assert core.on(Held(0, 1, other, Push(1, other, 0, "pull"))) == [Answer(1, other, "pulled", 0)]


def test_a_departure_completes_the_step_of_the_others() -> None:
    core = coordination(1, mode=Sync())
    core.on(held(core, 0, 0))
    assert core.waited_for() == [1]
    assert Apply(1, (Part(0, core.base_seq(0) + 1),)) in core.on(Lost(1))
    assert core.waited_for() == []
