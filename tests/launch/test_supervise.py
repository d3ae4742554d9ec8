"""When a job goes on and when it ends, without a process."""

from __future__ import annotations

import itertools
import signal

import pytest

from argosy.cluster.spec import Task
from argosy.launch.job_events import Decision, Ended, Interrupted, Say, SendSignal, Tell, Tick, signal_name
from argosy.launch.supervise import Limits, Supervisor, exit_status

PS0, PS1 = Task("ps", 0), Task("ps", 1)
W0, W1 = Task("worker", 0), Task("worker", 1)
EVERYBODY = (PS0, PS1, W0, W1)
LIMITS = Limits(failure=5, servers=30, terminate=3, kill=5)


@pytest.fixture
def job() -> Supervisor:
    return Supervisor(EVERYBODY, LIMITS)


def end(job: Supervisor, task: Task, code: int, now: float = 0.0) -> list[Decision]:
    return job.on(Ended(task, 4242, code, now), now)


def sends(decisions: list[Decision]) -> list[SendSignal]:
    return [decision for decision in decisions if isinstance(decision, SendSignal)]


def tells(decisions: list[Decision]) -> list[Tell]:
    return [decision for decision in decisions if isinstance(decision, Tell)]


def says(decisions: list[Decision]) -> str:
    return "\n".join(decision.text for decision in decisions if isinstance(decision, Say))


@pytest.mark.parametrize("order", list(itertools.permutations(EVERYBODY)))
def test_all_end_well_in_any_order(order: tuple[Task, ...]) -> None:
    job = Supervisor(EVERYBODY, LIMITS)
    decisions = [decision for task in order for decision in end(job, task, 0)]
    assert decisions == []
    assert job.over
    assert job.failures == []


def test_a_worker_that_dies_takes_nobody_with_it(job: Supervisor) -> None:
    decisions = end(job, W1, -signal.SIGKILL)
    assert "/job:worker/task:1 was killed by SIGKILL (pid 4242); the others go on" in says(decisions)
    assert not sends(decisions)
    assert job.deadline is None
    assert [failure.task for failure in job.failures] == [W1]


def test_a_ring_does_not_go_on_without_a_worker() -> None:
    job = Supervisor([W0, W1], LIMITS, survives=False)
    decisions = end(job, W1, -signal.SIGKILL, now=1)
    assert "/job:worker/task:1 was killed by SIGKILL (pid 4242); the others have 5 s to end" in says(
        decisions
    )
    assert "go on" not in says(decisions)
    assert job.deadline == 1 + LIMITS.failure
    assert job.survived == []


def test_the_last_worker_may_die_if_another_finished(job: Supervisor) -> None:
    end(job, W0, 0)
    assert "the others go on" in says(end(job, W1, -signal.SIGKILL, now=1))
    assert job.deadline == 1 + LIMITS.servers


def test_all_workers_dead_is_a_failure(job: Supervisor) -> None:
    end(job, W0, -signal.SIGKILL)
    end(job, W1, -signal.SIGSEGV, now=1)
    assert job.deadline == 1 + LIMITS.failure


@pytest.mark.parametrize("task", EVERYBODY)
def test_a_failing_task_ends_the_job_after_a_grace(job: Supervisor, task: Task) -> None:
    assert not sends(end(job, task, 3, now=10))
    others = tuple(sorted(set(EVERYBODY) - {task}))
    assert job.on(Tick(), 14.9) == []
    assert sends(job.on(Tick(), 15)) == [SendSignal(others, signal.SIGTERM)]
    assert job.on(Tick(), 17.9) == []
    assert sends(job.on(Tick(), 18)) == [SendSignal(others, signal.SIGKILL)]
    assert job.running
    assert "cannot be killed" in says(job.on(Tick(), 23))
    assert job.over
    assert job.given_up


def test_a_server_that_dies_ends_the_job(job: Supervisor) -> None:
    assert "/job:ps/task:1 was killed by SIGKILL" in says(end(job, PS1, -signal.SIGKILL, now=2))
    assert job.deadline == 2 + LIMITS.failure


def test_a_second_failure_does_not_prolong_the_grace(job: Supervisor) -> None:
    end(job, W0, 1, now=0)
    end(job, W1, 1, now=4)
    end(job, PS0, -signal.SIGABRT, now=4.5)
    assert job.deadline == LIMITS.failure
    assert [failure.task for failure in job.failures] == [W0, W1, PS0]


def test_a_worker_that_dies_while_the_job_ends_is_not_said_to_be_survived(job: Supervisor) -> None:
    end(job, W0, 1)
    assert "go on" not in says(end(job, W1, -signal.SIGKILL))


def test_the_others_are_told_of_the_failure_that_ends_the_job_and_of_no_other(job: Supervisor) -> None:
    assert not tells(end(job, W1, -signal.SIGKILL))
    assert tells(end(job, W0, 1)) == [Tell(Ended(W0, 4242, 1, 0.0))]
    assert not tells(end(job, PS0, 1))  # who follows is not told of
    assert not tells(end(Supervisor([W0], LIMITS), W0, 1))  # nobody is left


def test_which_deaths_the_job_has_survived(job: Supervisor) -> None:
    end(job, W1, -signal.SIGKILL)
    end(job, PS0, -signal.SIGKILL)
    end(job, W0, -signal.SIGKILL)
    assert [ended.task for ended in job.survived] == [W1]
    assert [ended.task for ended in job.failures] == [W1, PS0, W0]


def test_a_death_before_a_failure_is_kept(job: Supervisor) -> None:
    end(job, W1, -signal.SIGKILL, now=0)
    end(job, W0, 1, now=7)
    assert job.deadline == 7 + LIMITS.failure
    assert [failure.task for failure in job.failures] == [W1, W0]


def test_servers_are_ended_some_time_after_the_last_worker(job: Supervisor) -> None:
    end(job, W0, 0, now=1)
    assert job.deadline is None
    end(job, W1, 0, now=2)
    end(job, PS0, 0, now=3)
    decisions = job.on(Tick(), 32)
    assert "/job:ps/task:1" in says(decisions)
    assert sends(decisions) == [SendSignal((PS1,), signal.SIGTERM)]
    end(job, PS1, -signal.SIGTERM, now=33)
    assert job.over
    assert job.failures == []  # it was ended, it did not fail


def test_a_server_that_fails_after_the_last_worker_shortens_the_wait(job: Supervisor) -> None:
    end(job, W0, 0)
    end(job, W1, 0)
    end(job, PS0, 1, now=1)
    assert job.deadline == 1 + LIMITS.failure


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_everybody(job: Supervisor, number: int) -> None:
    end(job, W1, 0)
    assert sends(job.on(Interrupted(number), 1)) == [SendSignal((PS0, PS1, W0), signal.SIGTERM)]
    end(job, W0, 1, now=2)
    assert job.failures == []
    assert sends(job.on(Tick(), 30)) == []  # they may be saving
    assert sends(job.on(Tick(), 31)) == [SendSignal((PS0, PS1), signal.SIGKILL)]
    assert job.interrupt == number


def test_a_second_interrupt_kills_at_once(job: Supervisor) -> None:
    job.on(Interrupted(signal.SIGINT), 1)
    assert sends(job.on(Interrupted(signal.SIGTERM), 1.1)) == [SendSignal(EVERYBODY, signal.SIGKILL)]
    assert job.interrupt == signal.SIGINT


def test_an_interrupt_cuts_a_grace_short(job: Supervisor) -> None:
    end(job, W0, 1)
    assert sends(job.on(Interrupted(signal.SIGINT), 1)) == [SendSignal((PS0, PS1, W1), signal.SIGTERM)]


def test_exit_status() -> None:
    assert [exit_status(code) for code in (0, 3, -9, -15)] == [0, 3, 137, 143]


def test_signal_names() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(40) == "signal 40"
