"""Asynchronous admission: applied on arrival, and, with a bound, never staler than it says."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.modes import Async, Local, Sync
from argosy.protocol.decisions import Answer, Apply, Decision, Forget, Part, Push
from argosy.update.admission import AsyncAdmission, SyncAdmission, admission_for
from argosy.update.membership import Roster


def present(workers: int) -> Roster:
    roster = Roster(workers)
    for worker in range(workers):
        roster.arrive(worker)
    return roster


def policy(bound: int | None, workers: int = 2, last_step: int | None = None) -> AsyncAdmission:
    return AsyncAdmission(bound, present(workers), last_step)


def answers(decisions: list[Decision]) -> list[Answer]:
    return [decision for decision in decisions if isinstance(decision, Answer)]


def test_each_mode_has_its_policy() -> None:
    assert isinstance(admission_for(Sync(), Roster(1), None), SyncAdmission)
    assert isinstance(admission_for(Async(), Roster(1), None), AsyncAdmission)
    assert isinstance(admission_for(Local(), Roster(1), None), AsyncAdmission)


def test_without_a_bound_a_gradient_is_applied_on_arrival_and_its_staleness_counted() -> None:
    core = policy(None)
    assert core.offer(Push(0, 1, 0)) == [Apply(1, (Part(0, 1),)), Answer(0, 1, "applied", 1)]
    assert core.offer(Push(1, 1, 0)) == [Apply(2, (Part(1, 1),)), Answer(1, 1, "applied", 2, 1)]
    assert core.offer(Push(0, 2, 1)) == [Apply(3, (Part(0, 2),)), Answer(0, 2, "applied", 3, 1)]


def test_skips_and_pulls_are_answered_and_change_nothing() -> None:
    core = policy(None)
    assert core.offer(Push(0, 1, 0, "skip")) == [Answer(0, 1, "skipped", 0)]
    assert core.offer(Push(0, 2, 0, "pull")) == [Answer(0, 2, "pulled", 0)]
    assert core.step == 0


def test_the_weight_travels_with_the_part() -> None:
    assert Apply(1, (Part(0, 1, 32.0),)) in policy(None).offer(Push(0, 1, 0, weight=32.0))


def test_the_last_step_is_the_last() -> None:
    core = policy(None, last_step=1)
    assert core.offer(Push(0, 1, 0))[-1] == Answer(0, 1, "applied", 1, stop=True)
    assert core.offer(Push(1, 1, 0)) == [Forget(1, 1), Answer(1, 1, "dropped", 1, 1, stop=True)]
    assert core.offer(Push(1, 2, 0, "skip")) == [Answer(1, 2, "skipped", 1, stop=True)]
    assert core.offer(Push(1, 3, 0, "pull")) == [Answer(1, 3, "pulled", 1, stop=True)]
    assert core.step == 1


def test_a_job_that_has_nothing_to_do_stops_at_the_first_pull() -> None:
    assert policy(None, last_step=0).offer(Push(0, 1, 0, "pull")) == [Answer(0, 1, "pulled", 0, stop=True)]


def test_with_a_bound_the_fast_one_waits_for_the_slow_one() -> None:
    core = policy(1)
    for worker in (0, 1):
        assert answers(core.offer(Push(worker, 1, 0, "pull")))
    assert answers(core.offer(Push(0, 2, 0)))  # worker 1 may still come: it will be 1 stale
    assert core.offer(Push(0, 3, 1)) == []  # a second one would make worker 1's 2 stale
    assert list(core.waited_for()) == [1]
    came = core.offer(Push(1, 2, 0))
    assert [decision for decision in came if isinstance(decision, Apply)] == [
        Apply(2, (Part(1, 2),)),
        Apply(3, (Part(0, 3),)),
    ]
    assert [(a.worker, a.status, a.staleness) for a in answers(came)] == [
        (1, "applied", 1),
        (0, "applied", 1),
    ]
    assert list(core.waited_for()) == []


def test_a_bound_of_zero_is_one_after_the_other() -> None:
    core = policy(0)
    assert answers(core.offer(Push(0, 1, 0, "pull")))
    assert core.offer(Push(1, 1, 0, "pull")) == []
    assert list(core.waited_for()) == [0]
    assert [a.worker for a in answers(core.offer(Push(0, 2, 0)))] == [1]


def test_a_worker_that_leaves_holds_nobody_back() -> None:
    core = policy(0)
    core.offer(Push(0, 1, 0, "pull"))
    core.offer(Push(1, 1, 0, "pull"))
    core._roster.lose(0)
    assert core.roster_changed() == [Answer(1, 1, "pulled", 0)]


def test_what_a_lost_worker_waits_for_is_forgotten() -> None:
    """It must not be given values: nobody would ever bring a gradient for them."""
    core = policy(0, workers=3)
    core.offer(Push(0, 1, 0, "pull"))
    core.offer(Push(1, 1, 0, "pull"))
    core.offer(Push(2, 1, 0, "pull"))
    core._roster.lose(1)
    assert core.roster_changed() == [Forget(1, 1)]
    assert [a.worker for a in answers(core.offer(Push(0, 2, 0)))] == [2]


def test_a_held_gradient_of_a_lost_worker_is_forgotten() -> None:
    core = policy(1, workers=3)
    for worker in (0, 1):
        core.offer(Push(worker, 1, 0, "pull"))
    core.offer(Push(0, 2, 0))
    assert core.offer(Push(0, 3, 1)) == []
    core._roster.lose(0)
    assert Forget(0, 3) in core.roster_changed()
    assert core.offer(Push(1, 2, 0))[0] == Apply(2, (Part(1, 2),))


def test_what_is_held_at_the_end_is_dropped_and_told() -> None:
    core = policy(1, last_step=2)
    for worker in (0, 1):
        core.offer(Push(worker, 1, 0, "pull"))
    core.offer(Push(0, 2, 0))
    core.offer(Push(0, 3, 1))
    end = core.offer(Push(1, 2, 0))
    assert core.step == 2
    assert {(a.worker, a.status, a.stop) for a in answers(end)} == {
        (0, "dropped", True),
        (1, "applied", True),
    }
    assert Forget(0, 3) in end


@settings(deadline=None, derandomize=True)
@given(
    bound=st.integers(0, 5),
    workers=st.integers(1, 5),
    last_step=st.none() | st.integers(0, 12),
    data=st.data(),
)
def test_no_schedule_breaks_the_bound_or_hangs(
    bound: int, workers: int, last_step: int | None, data: st.DataObject
) -> None:
    core = policy(bound, workers, last_step)
    ready = dict.fromkeys(range(workers), (1, 0, False))  # who may push: its number, version, pulled
    pending: dict[tuple[int, int], int] = {}
    left: set[int] = set()
    for _ in range(60):
        awaited = [worker for worker in ready if worker not in left]
        if not awaited:
            break
        worker = data.draw(st.sampled_from(awaited))
        seq, version, pulled = ready[worker]
        action = data.draw(st.sampled_from(["gradient", "gradient", "gradient", "skip", "leave"]))
        if action == "leave":
            left.add(worker)
            core._roster.finish(worker)
            decisions = core.roster_changed()
        else:
            del ready[worker]
            pending[worker, seq] = version
            decisions = core.offer(Push(worker, seq, version, action if pulled else "pull"))  # type: ignore[arg-type]
        for decision in decisions:
            if isinstance(decision, Apply):
                (part,) = decision.parts
                assert decision.step - 1 - pending[part.worker, part.seq] <= bound
                assert last_step is None or decision.step <= last_step
            elif isinstance(decision, Answer):
                del pending[decision.worker, decision.seq]  # a KeyError here: answered twice
                ready[decision.worker] = (decision.seq + 1, decision.step, True)
                if decision.stop:
                    left.add(decision.worker)
    assert not pending or [worker for worker in ready if worker not in left], "everybody waits for nobody"
