"""Who came and went: each change once, numbered, over the processes of a coordinator."""

from __future__ import annotations

from argosy.cluster.spec import Task
from argosy.protocol.asking import MOST_CHANGES
from argosy.server.changes import Changes
from argosy.server.durable_memory import OrdinaryMemory

W, S = Task("worker", 1), Task("ps", 1)


class Kept(OrdinaryMemory):
    """One value."""

    value: bytes | None = None

    def put(self, name: str, value: bytes) -> None:
        self.value = value

    def get(self, name: str) -> bytes | None:
        return self.value


class Job:
    """A job at some step, and its changes."""

    def __init__(self, memory: Kept | None = None) -> None:
        self.step = 0
        self.changes = Changes(lambda: self.step)
        self.memory = memory or Kept()
        self.changes.recall(self.memory)

    def at(self, step: int) -> Changes:
        self.step = step
        return self.changes

    def started_again(self) -> Job:
        self.changes.keep(self.memory)
        return Job(self.memory)

    def kinds(self) -> list[tuple[int, str, str, int]]:
        return [(each.number, each.kind, each.task, each.step) for each in self.changes.latest()]


def test_a_worker_joins_is_lost_comes_back_and_leaves() -> None:
    job = Job()
    job.at(0).arrive(W)
    job.at(3).lose(W)
    job.at(4).lose(W)
    job.at(5).arrive(W)
    job.at(9).leave(W)
    name = str(W)
    expected = [(1, "joined", name, 0), (2, "lost", name, 3), (3, "restarted", name, 5), (4, "left", name, 9)]
    assert job.kinds() == expected


def test_a_death_that_nobody_saw_is_one() -> None:
    job = Job()
    job.at(0).arrive(W)
    job.at(5).arrive(W)
    assert [kind for _, kind, _, _ in job.kinds()] == ["joined", "lost", "restarted"]


def test_one_that_was_given_up_joins_anew() -> None:
    job = Job()
    job.at(0).arrive(W)
    job.at(1).lose(W)
    job.at(2).leave(W)
    assert job.changes.lines(0.0) == [f"{W} was lost at step 1, 0 s ago; not waited for any more"]
    job.at(5).arrive(W)
    assert [kind for _, kind, _, _ in job.kinds()] == ["joined", "lost", "left", "joined"]


def test_a_server_is_known_by_its_life() -> None:
    job = Job()
    job.at(0).meet(S, "a")
    job.at(1).meet(S, "a")
    assert not job.kinds()
    job.at(2).lose(S)
    job.at(3).meet(S, "b")
    assert job.kinds() == [(1, "lost", str(S), 2), (2, "restarted", str(S), 3)]
    after = job.started_again()  # it died while the coordinator was away, too
    after.at(4).meet(S, "c")
    assert after.kinds()[2:] == [(3, "lost", str(S), 4), (4, "restarted", str(S), 4)]


def test_numbers_go_on_in_the_next_process() -> None:
    job = Job()
    job.at(0).arrive(W)
    after = job.started_again()
    assert after.changes.latest() == job.changes.latest()
    after.at(2).lose(W)
    assert after.kinds()[1:] == [(2, "lost", str(W), 2)]


def test_the_latest_are_kept() -> None:
    job = Job()
    for step in range(MOST_CHANGES):
        job.at(step).come_back(W)
    numbers = [each.number for each in job.started_again().changes.latest()]
    assert numbers == list(range(MOST_CHANGES + 1, 2 * MOST_CHANGES + 1))


def test_a_person_sees_the_latest_losses() -> None:
    job = Job()
    job.at(0).arrive(W)
    job.at(57).lose(W)
    lost = job.changes.latest()[-1].time
    assert job.changes.lines(lost + 12) == [f"{W} was lost at step 57, 12 s ago"]
    job.at(58).arrive(W)
    assert job.changes.lines(lost + 12) == [f"{W} was lost at step 57, 12 s ago; back at step 58"]
    for step in range(60, 70):
        job.at(step).come_back(W)
    assert len(job.changes.lines(lost)) == 5
