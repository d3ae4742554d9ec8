"""Checkpoints on paper: when one is due, what it waits for, what it is made of; never two at a time."""

from __future__ import annotations

from argosy.modes import Async, Sync
from argosy.protocol.decisions import Answer, Apply, Cut, Decision, Push
from argosy.protocol.saving import ShardFile
from argosy.update.admission import admission_for
from argosy.update.checkpoints import Checkpoints, Contents
from argosy.update.coordination import (
    Arrived,
    Coordination,
    CutWanted,
    CutWritten,
    Finished,
    Held,
    StopWanted,
)
from argosy.update.membership import Roster


def test_a_cut_every_so_many_steps() -> None:
    cuts = Checkpoints(3, 0)
    taken = []
    for step in range(1, 11):
        if cuts.take(step, ()):
            taken.append(step)
            cuts.written()
    assert taken == [3, 6, 9]


def test_resumed_in_between_the_next_is_the_same_as_before() -> None:
    cuts = Checkpoints(100, 150)
    assert [step for step in range(151, 260) if cuts.take(step, ())] == [200]


def test_one_that_is_due_while_another_is_written_comes_after_it() -> None:
    cuts = Checkpoints(2, 0)
    assert cuts.take(2, ())
    assert not any(cuts.take(step, ()) for step in range(3, 8))
    cuts.written()
    assert cuts.take(8, ())
    assert not cuts.take(9, ())


def test_one_that_is_asked_for_comes_after_the_next_step() -> None:
    cuts = Checkpoints(None, 5)
    assert not cuts.take(6, ())
    cuts.ask(6)
    cuts.ask(6)
    assert cuts.take(7, ())
    cuts.written()
    assert not cuts.take(8, ())


def test_what_could_not_be_saved_is_cut_once_more_at_the_end() -> None:
    cuts = Checkpoints(5, 0)
    assert cuts.take(5, ())
    cuts.written()
    assert cuts.take(10, ())
    cuts.written(saved=False)
    assert cuts.latest == 5
    assert cuts.finish(10)
    cuts.written(saved=False)
    assert not cuts.finish(10)  # or a disk that stays full would be tried for ever
    assert cuts.finish(11)


def test_at_the_end_only_what_is_not_saved_is_cut() -> None:
    cuts = Checkpoints(5, 0)
    assert not cuts.finish(0)
    assert cuts.take(5, ())
    assert not cuts.finish(7)  # until the other is written
    cuts.written()
    assert cuts.finish(7)
    cuts.written()
    assert not cuts.finish(7)


class Job:
    """A coordinator and its workers, each of whom pushes when told."""

    def __init__(self, mode: Async | Sync, workers: int, every: int | None = None) -> None:
        roster = Roster(workers)
        self.core = Coordination(1, roster, admission_for(mode, roster, None))
        self.core.checkpoints = Checkpoints(every, 0)
        self.seqs = {}
        for worker in range(workers):
            self.core.on(Arrived(worker))
            self.seqs[worker] = self.core.base_seq(worker)

    def push(self, worker: int) -> list[Decision]:
        self.seqs[worker] += 1
        push = Push(worker, self.seqs[worker], self.core.admission.step)
        return self.core.on(Held(None, worker, self.seqs[worker], push))


def test_a_synchronous_cut_stands_between_the_step_and_its_answers() -> None:
    job = Job(Sync(), 2, every=2)
    job.push(0)
    assert not any(isinstance(decision, Cut) for decision in job.push(1))
    job.push(1)
    decisions = job.push(0)
    assert [type(decision) for decision in decisions] == [Apply, Cut, Answer, Answer]
    assert decisions[1] == Cut(2)
    assert all(decision.cut for decision in decisions[2:] if isinstance(decision, Answer))


def test_every_worker_hears_of_a_cut_once() -> None:
    job = Job(Async(), 3, every=2)
    heard = []
    for worker in (0, 0, 0, 1, 1, 2):
        heard += [(d.worker, d.step) for d in job.push(worker) if isinstance(d, Answer) and d.cut]
    assert heard == [(0, 2), (1, 4), (2, 6)]


def test_the_last_one_out_has_the_state_saved() -> None:
    job = Job(Async(), 2)
    job.push(0)
    job.core.on(CutWanted())
    assert Cut(2) in job.push(1)
    job.push(0)
    assert job.core.on(Finished(0)) == []
    assert job.core.on(Finished(1)) == []  # step 3 is not saved, but step 2 is still being written
    assert job.core.on(CutWritten()) == [Cut(3)]
    assert job.core.on(CutWritten()) == []


def test_told_to_stop_a_job_makes_one_more_step() -> None:
    job = Job(Sync(), 2)
    job.push(0)
    assert job.core.on(StopWanted()) == []
    answers = [decision for decision in job.push(1) if isinstance(decision, Answer)]
    assert [(answer.step, answer.stop) for answer in answers] == [(1, True), (1, True)]


# --- what a checkpoint is made of -------------------------------------------------------------------------
def file(writer: int) -> ShardFile:
    return ShardFile(f"shard-{writer}", 1, "")


def begun(writers: int = 2, patience: float = 5.0) -> Checkpoints:
    checkpoints = Checkpoints(4, 0, writers, patience)
    assert checkpoints.take(4, {0, 1})
    return checkpoints


def test_it_is_ready_once_all_files_and_states_are_there() -> None:
    checkpoints = begun()
    checkpoints.give(1, b"one", 4)
    checkpoints.file(1, 4, file(1), "")
    checkpoints.give(0, b"zero", 4)
    assert checkpoints.ready({0, 1}, 0.0) is None
    checkpoints.file(0, 4, file(0), "")
    contents = checkpoints.ready({0, 1}, 0.0)
    assert contents == Contents(4, (file(0), file(1)), (), {0: b"zero", 1: b"one"})
    assert checkpoints.ready({0, 1}, 0.0) is None  # once
    assert checkpoints.busy
    checkpoints.written()
    assert not checkpoints.busy


def test_a_later_state_belongs_to_the_next_one() -> None:
    checkpoints = begun(writers=1)
    checkpoints.give(0, b"at 4", 4)
    checkpoints.give(0, b"at 5", 5)
    checkpoints.give(1, b"other", 4)
    checkpoints.file(0, 4, file(0), "")
    contents = checkpoints.ready({0, 1}, 0.0)
    assert contents is not None
    assert contents.replicas == {0: b"at 4", 1: b"other"}
    assert checkpoints.state_of(0) == b"at 5"


def test_a_state_of_before_the_cut_was_said_again_and_does_not_count() -> None:
    checkpoints = begun(writers=1)
    checkpoints.give(0, b"at 3", 3)
    assert checkpoints.wants(0)
    checkpoints.give(0, b"at 4", 4)
    assert not checkpoints.wants(0)


def test_a_slow_replica_is_waited_for_until_it_leaves_or_patience_ends() -> None:
    for present, now in (({0}, 0.0), ({0, 1}, 5.0)):
        checkpoints = begun(writers=1)
        checkpoints.give(0, b"zero", 4)
        checkpoints.file(0, 4, file(0), "")
        assert checkpoints.wants(1)
        assert checkpoints.ready({0, 1}, 0.0) is None
        contents = checkpoints.ready(present, now)
        assert contents is not None
        assert contents.replicas == {0: b"zero"}


def test_the_state_before_stands_in_for_one_that_does_not_come() -> None:
    checkpoints = begun(writers=1)
    checkpoints.give(0, b"at 4", 4)
    checkpoints.give(1, b"at 4", 4)
    checkpoints.file(0, 4, file(0), "")
    assert checkpoints.ready({0, 1}, 0.0) is not None
    checkpoints.written()
    assert checkpoints.take(8, {0, 1})
    checkpoints.give(0, b"at 8", 8)
    checkpoints.stop_waiting()
    checkpoints.file(0, 8, file(0), "")
    contents = checkpoints.ready({0, 1}, 0.0)
    assert contents is not None
    assert contents.replicas == {0: b"at 8", 1: b"at 4"}


def test_what_goes_wrong_is_told_by_every_writer() -> None:
    checkpoints = begun(writers=3)
    checkpoints.stop_waiting()
    checkpoints.file(2, 4, None, "full")
    checkpoints.file(0, 4, None, "gone")
    checkpoints.file(1, 4, file(1), "")
    contents = checkpoints.ready({0, 1}, 0.0)
    assert contents is not None
    assert contents.errors == ("gone", "full")


def test_files_of_another_cut_do_not_count() -> None:
    checkpoints = begun(writers=1)
    checkpoints.stop_waiting()
    checkpoints.file(0, 2, file(0), "")
    assert checkpoints.ready((), 0.0) is None


def test_after_a_failure_of_the_job_what_was_begun_is_finished_and_nothing_else() -> None:
    checkpoints = begun(writers=1)
    checkpoints.end()
    checkpoints.file(0, 4, file(0), "")
    assert checkpoints.ready((), 0.0) is not None
    checkpoints.written()
    assert not checkpoints.take(8, ())
    assert not checkpoints.finish(9)
