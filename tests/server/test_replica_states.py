"""What a worker's pushes have carried, and which of its turns count: from where another process goes on."""

from __future__ import annotations

import pytest

from argosy.protocol.decisions import Answer, Apply, Forget, Part, Status
from argosy.protocol.saving import CarriedState
from argosy.server.replica_states import ReplicaStates


def brought(*seqs: int) -> ReplicaStates:
    """Worker 1 has brought these; each has the number of its push as its place."""
    states = ReplicaStates()
    for seq in seqs:
        states.bring(1, seq, CarriedState({"place": str(seq).encode()}, seq))
    return states


def place(states: ReplicaStates, worker: int = 1) -> tuple[bytes, int]:
    carried = states.of(worker)
    assert carried is not None
    return carried.parts["place"], carried.turns


def test_a_worker_that_has_not_come_to_a_turn_has_no_state() -> None:
    assert brought(1).of(0) is None
    states = brought(1)
    states.forget(1)
    assert states.of(1) is None


def test_a_turn_that_is_not_decided_is_made_again() -> None:
    states = brought(1)
    states.count([Forget(1, 1), Answer(0, 7, "applied", 1)])
    assert place(states) == (b"1", 0)


@pytest.mark.parametrize("status", ["applied", "dropped", "folded", "skipped", "held"])
def test_a_turn_that_was_answered_counts(status: Status) -> None:
    states = brought(1)
    states.count([Answer(1, 1, status, 1)])
    assert place(states) == (b"1", 1)


def test_a_turn_counts_once() -> None:
    """It is in a step, and answered; it was answered before its step was made."""
    states = brought(1)
    states.count([Apply(1, (Part(0, 3), Part(1, 1))), Answer(1, 1, "applied", 1)])
    states.count([Apply(2, (Part(1, 1),))])
    assert place(states) == (b"1", 1)


def test_a_pull_is_no_turn() -> None:
    states = brought(1)
    states.count([Answer(1, 2, "pulled", 1)])
    assert place(states) == (b"1", 0)


def test_a_later_turn_begins_anew_although_the_one_before_is_applied_later() -> None:
    states = brought(1)
    states.count([Answer(1, 1, "held", 0)])
    states.bring(1, 2, CarriedState({"place": b"2"}))
    states.count([Apply(1, (Part(1, 1),))])
    assert place(states) == (b"2", 0)


def test_several_turns_from_one_state_are_all_counted() -> None:
    states = brought(1)
    states.count([Answer(1, 1, "applied", 1), Answer(1, 2, "applied", 2)])
    assert place(states) == (b"1", 2)


def test_only_what_has_changed_is_brought() -> None:
    states = ReplicaStates()
    states.bring(1, 1, CarriedState({"torch": b"a", "place": b"1"}, 4))
    states.bring(1, 2, CarriedState({"place": b"2"}, 5, 1))
    assert states.of(1) == CarriedState({"torch": b"a", "place": b"2"}, 5, 1)


def test_what_is_sent_twice_is_brought_once() -> None:
    states = brought(1)
    states.count([Answer(1, 1, "applied", 1)])
    states.bring(1, 1, CarriedState({"place": b"1"}))
    assert place(states) == (b"1", 1)
