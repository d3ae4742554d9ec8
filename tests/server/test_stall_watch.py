"""When a job counts as stuck: everybody is here, nothing goes on, and nobody else keeps the time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from argosy.cluster.spec import ClusterSpec
from argosy.protocol.asking import StatusReport, WaitingReport
from argosy.server.stall_watch import StallWatch
from argosy.update.membership import Roster

SPEC = ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "c:1"]})


class Job:
    """Two workers, both here, and a watch that allows 5 seconds."""

    def __init__(self) -> None:
        self.step, self.last_step, self.progress_at = 3, 10, 0.0
        self.failure: object = None
        self.failures: list[str] = []
        self.roster = Roster(2)
        self.links = SimpleNamespace(ready=True)
        self.asked: list[Callable[[StatusReport], None]] = []
        self.waited: tuple[str, ...] = ()
        status = SimpleNamespace(inquire=self.asked.append)
        for worker in range(2):
            self.roster.arrive(worker)
        me: Any = self
        links: Any = self.links
        end: Any = SimpleNamespace(grace=10.0)
        self.watch = StallWatch(5.0, SPEC, me, links, cast(Any, status), self.waiting, end)
        self.now = 0.0
        self.watch._looked = 0.0

    def waiting(self) -> WaitingReport:
        return WaitingReport(self.waited, 0.0)

    def fail(self, task: object, reason: str) -> None:
        self.failure = reason
        self.failures.append(reason)

    def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.watch.look(self.now)


def test_it_asks_once_and_then_ends_the_job_with_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    job = Job()
    job.waited = ("/job:worker/task:1 at c:1",)
    job.passes(4)
    assert not job.asked
    job.passes(2)
    assert len(job.asked) == 1
    assert not job.failures
    job.asked[0](StatusReport(("how it stands",)))
    assert "argosy: how it stands" in capsys.readouterr().err
    (why,) = job.failures
    assert why.startswith("no progress for 6 s at step 3, waiting for /job:worker/task:1 at c:1; "), why
    job.passes(20)
    assert len(job.asked) == 1


def test_where_nobody_is_waited_for_all_workers_are_named() -> None:
    job = Job()
    job.passes(5)
    job.asked[0](StatusReport(()))
    assert "waiting for /job:worker/task:0 at b:1, /job:worker/task:1 at c:1;" in job.failures[0]


def test_progress_begins_the_time_anew_also_while_it_asks() -> None:
    job = Job()
    for _ in range(5):
        job.passes(4)
        job.progress_at += 1.0
    assert not job.asked
    job.passes(6)
    job.progress_at += 1.0
    job.passes(1)
    job.asked[0](StatusReport(()))
    assert not job.failures
    job.passes(6)
    assert len(job.asked) == 2


@pytest.mark.parametrize(
    "become",
    [
        lambda job: job.roster.expect_back(1),
        lambda job: setattr(job.links, "ready", False),
        lambda job: setattr(job, "step", 10),
        lambda job: setattr(job, "failure", "another"),
        lambda job: [job.roster.finish(worker) for worker in range(2)],
    ],
    ids=["a worker comes back", "a server comes back", "the last step", "it has failed", "all are done"],
)
def test_it_counts_only_while_all_are_here_and_something_is_left(become: Callable[[Job], object]) -> None:
    job = Job()
    become(job)
    job.passes(60)
    assert not job.asked


def test_a_worker_that_came_back_has_all_of_the_time() -> None:
    job = Job()
    job.passes(4)
    job.roster.expect_back(1)
    job.passes(1)
    job.roster.arrive(1)
    job.passes(4)
    assert not job.asked
    job.passes(1)
    assert job.asked


def test_a_coordinator_that_stood_still_blames_nobody() -> None:
    job = Job()
    job.now = 1000.0
    job.passes(1)
    assert not job.asked
    assert job.watch._quiet <= 2.0
