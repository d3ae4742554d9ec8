"""Tasks that a signal has ended are started again: what is decided, without a process."""

from __future__ import annotations

import itertools
import signal

import pytest

from argosy.cluster.spec import Task
from argosy.launch.job_events import (
    Decision,
    Ended,
    GiveUp,
    Interrupted,
    Restart,
    Say,
    SendSignal,
    Tell,
    Tick,
)
from argosy.launch.supervise import Limits, Restarts, Supervisor

PS0, PS1 = Task("ps", 0), Task("ps", 1)
W0, W1 = Task("worker", 0), Task("worker", 1)
EVALUATOR = Task("evaluator", 0)
EVERYBODY = (PS0, PS1, W0, W1)
LIMITS = Limits(failure=5, servers=30, terminate=3, kill=5)
KILLED = -signal.SIGKILL


def supervise(
    most: int = 3, min_workers: int = 1, tasks: tuple[Task, ...] = EVERYBODY, survives: bool = True
) -> Supervisor:
    return Supervisor(tasks, LIMITS, survives=survives, restarts=Restarts(most, min_workers))


def end(job: Supervisor, task: Task, code: int = KILLED, now: float = 0.0) -> list[Decision]:
    return job.on(Ended(task, 4242, code, now), now)


def tick(job: Supervisor) -> list[Decision]:
    """What is done at the next deadline."""
    assert job.deadline is not None
    return job.on(Tick(), job.deadline)


def die_and_return(job: Supervisor, task: Task, times: int = 1, now: float = 0.0) -> None:
    for _ in range(times):
        end(job, task, now=now)
        assert tick(job) == [Restart(task)]


def says(decisions: list[Decision]) -> str:
    return "\n".join(decision.text for decision in decisions if isinstance(decision, Say))


def others(decisions: list[Decision]) -> list[Decision]:
    return [decision for decision in decisions if not isinstance(decision, Say)]


@pytest.mark.parametrize("task", EVERYBODY)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_who_was_ended_by_a_signal_is_started_again(task: Task, number: signal.Signals) -> None:
    job = supervise()
    decisions = end(job, task, -number, now=10)
    assert decisions == [Say(f"{task} was killed by {number.name} (pid 4242); it is started again (1 of 3)")]
    assert task not in job.running
    assert job.may_restart(task)
    assert job.on(Tick(), 10.1) == []
    assert job.deadline == pytest.approx(10.2)
    assert job.on(Tick(), 10.2001) == [Restart(task)]
    assert task in job.running
    assert job.deadline is None
    assert (job.failures, job.survived) == ([], [])


@pytest.mark.parametrize("order", list(itertools.permutations(EVERYBODY)))
def test_all_at_once_in_any_order(order: tuple[Task, ...]) -> None:
    job = supervise()
    for task in order:
        assert others(end(job, task)) == []
    assert (job.running, job.over) == (set(), False)
    assert tick(job) == [Restart(task) for task in EVERYBODY]
    for task in order:
        assert end(job, task, 0) == []
    assert (job.over, job.failures) == (True, [])


def test_pauses_become_longer_but_not_without_end() -> None:
    job = supervise(most=2000)
    pauses = []
    for _ in range(1500):
        end(job, W0, now=100)
        assert job.deadline is not None
        pauses.append(job.deadline - 100)
        tick(job)
    assert pauses[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert max(pauses) == pytest.approx(6.4)


def test_each_task_has_its_own_restarts() -> None:
    job = supervise(most=1)
    for task in EVERYBODY:
        assert job.may_restart(task)
        die_and_return(job, task)
        assert not job.may_restart(task)
    assert job.failures == []


def test_a_server_without_restarts_ends_the_job() -> None:
    job = supervise()
    die_and_return(job, PS1, times=3)
    decisions = end(job, PS1, now=50)
    assert says(decisions) == (
        "/job:ps/task:1 was killed by SIGKILL (pid 4242), after 3 restarts; the others have 5 s to end"
    )
    assert others(decisions) == [Tell(Ended(PS1, 4242, KILLED, 50))]
    assert job.deadline == 50 + LIMITS.failure
    assert [failure.task for failure in job.failures] == [PS1]  # once, not four times


def test_a_worker_without_restarts_is_given_up() -> None:
    job = supervise()
    die_and_return(job, W1, times=3)
    decisions = end(job, W1)
    assert says(decisions) == (
        "/job:worker/task:1 was killed by SIGKILL (pid 4242), after 3 restarts; the others go on"
    )
    assert others(decisions) == [GiveUp((W1,))]
    assert job.deadline is None
    assert [failure.task for failure in job.failures] == [failure.task for failure in job.survived] == [W1]


def test_the_list_of_those_given_up_grows() -> None:
    workers = tuple(Task("worker", index) for index in range(4))
    job = supervise(most=0, tasks=(PS0, *workers))
    assert others(end(job, workers[2])) == [GiveUp((workers[2],))]
    assert others(end(job, workers[0])) == [GiveUp((workers[0], workers[2]))]
    assert others(end(job, workers[1])) == [GiveUp((workers[0], workers[1], workers[2]))]
    assert others(end(job, workers[3])) == [Tell(Ended(workers[3], 4242, KILLED, 0.0))]


@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("other", ["runs", "finished", "waits"])
def test_too_few_workers_end_the_job(most: int, other: str) -> None:
    for least, goes_on in ((1, True), (2, False)):
        job = supervise(most, least)
        die_and_return(job, W1, times=most)
        if other == "finished":
            end(job, W0, 0)
        elif other == "waits" and most:
            end(job, W0)
        decisions = end(job, W1)
        assert ("the others go on" in says(decisions)) == goes_on
        assert ("; 1 worker left of at least 2; the others have 5 s to end" in says(decisions)) != goes_on
        assert [type(decision) for decision in others(decisions)] == [GiveUp if goes_on else Tell]
        assert job.may_restart(PS0) == (goes_on and most > 0)


def test_a_worker_that_was_given_up_is_not_left() -> None:
    workers = tuple(Task("worker", index) for index in range(3))
    job = supervise(0, 2, (PS0, *workers))
    assert "the others go on" in says(end(job, workers[0]))
    assert "1 worker left of at least 2" in says(end(job, workers[2]))


def test_the_last_worker_without_restarts_ends_the_job() -> None:
    job = supervise(most=1)
    for task in (W0, W1):
        die_and_return(job, task)
    assert "the others go on" in says(end(job, W0))
    decisions = end(job, W1)
    assert says(decisions).endswith(", after 1 restart; the others have 5 s to end")
    assert [type(decision) for decision in others(decisions)] == [Tell]


def test_an_evaluator_is_no_worker() -> None:
    job = supervise(most=1, tasks=(PS0, W0, EVALUATOR))
    die_and_return(job, EVALUATOR)
    die_and_return(job, W0)
    assert "the others have 5 s to end" in says(end(job, W0))


@pytest.mark.parametrize("task", EVERYBODY)
def test_an_exit_code_ends_the_job(task: Task) -> None:
    job = supervise()
    assert "the others have 5 s to end" in says(end(job, task, 1))
    assert not any(job.may_restart(each) for each in EVERYBODY)


@pytest.mark.parametrize("task", EVERYBODY)
def test_who_ended_well_does_not_come_back(task: Task) -> None:
    job = supervise()
    assert end(job, task, 0) == []
    assert not job.may_restart(task)


def test_a_ring_starts_nobody_again() -> None:
    job = Supervisor([W0, W1], LIMITS, survives=False)
    assert not job.may_restart(W1)
    assert "the others have 5 s to end" in says(end(job, W1))


def test_tasks_that_serve_are_not_started_again() -> None:
    client = Task("client", 0)
    job = Supervisor([PS0, W0, client], LIMITS, "client")
    for task in (PS0, W0):
        decisions = end(job, task)
        assert decisions == [Say(f"{task} was killed by SIGKILL (pid 4242); the others go on")]


def test_a_failure_calls_restarts_off() -> None:
    job = supervise()
    end(job, PS0)
    end(job, W1)
    end(job, W0, 1, now=0.1)
    assert job.deadline == 0.1 + LIMITS.failure
    assert not job.may_restart(PS0)
    assert job.on(Tick(), 1) == []
    assert others(job.on(Tick(), 5.1)) == [SendSignal((PS1,), signal.SIGTERM)]
    assert [failure.task for failure in job.failures] == [W0]


def test_who_dies_while_the_job_fails_stays_dead() -> None:
    job = supervise()
    end(job, W0, 1)
    assert end(job, W1) == [Say("/job:worker/task:1 was killed by SIGKILL (pid 4242)")]
    assert [failure.task for failure in job.failures] == [W0, W1]


def test_an_interrupt_calls_restarts_off() -> None:
    job = supervise()
    end(job, PS0)
    assert others(job.on(Interrupted(signal.SIGINT), 0.1)) == [SendSignal((PS1, W0, W1), signal.SIGTERM)]
    assert job.on(Tick(), 1) == []
    assert not job.may_restart(PS0)
    for task in (PS1, W0, W1):
        assert end(job, task, -signal.SIGTERM) == []
    assert job.over
    assert job.failures == []


def test_an_interrupt_while_nobody_runs_is_the_end() -> None:
    job = supervise(tasks=(PS0, W0))
    end(job, PS0)
    end(job, W0)
    assert job.on(Interrupted(signal.SIGINT), 0.1) == [Say("SIGINT: no task is running")]
    assert job.over


def test_whom_we_ended_ourselves_is_not_started_again() -> None:
    job = supervise(tasks=(PS0, W0, EVALUATOR))
    end(job, W0, 0)
    end(job, EVALUATOR, 0)
    assert others(job.on(Tick(), 30)) == [SendSignal((PS0,), signal.SIGTERM)]
    assert end(job, PS0, -signal.SIGTERM, now=31) == []
    assert job.over


def test_servers_wait_for_a_worker_that_is_started_again() -> None:
    job = supervise(tasks=(PS0, W0))
    end(job, W0)
    assert tick(job) == [Restart(W0)]
    assert job.deadline is None  # the time of servers without workers does not run


def test_a_server_is_started_again_after_the_last_worker_unless_all_ended_well() -> None:
    job = supervise(most=1)
    die_and_return(job, W1)
    end(job, W1)  # given up
    end(job, W0, 0, now=1)
    assert "it is started again" in says(end(job, PS0, now=2))
    assert tick(job) == [Restart(PS0)]
    assert job.deadline == 1 + LIMITS.servers


def test_nobody_needs_a_server_once_all_workers_ended_well() -> None:
    job = supervise()
    for task in (W0, W1):
        end(job, task, 0)
    assert not job.may_restart(PS1)
    decisions = end(job, PS1, now=1)
    assert decisions == [
        Say("/job:ps/task:1 was killed by SIGKILL (pid 4242); the workers have finished, and need it no more")
    ]
    end(job, PS0, 0)
    assert job.over
    assert job.failures == []


def test_a_server_that_waits_for_its_restart_stays_away_when_all_workers_ended_well() -> None:
    job = supervise(tasks=(PS0, W0))
    end(job, PS0)
    end(job, W0, 0, now=0.1)
    assert job.over
    assert job.failures == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_worker_that_dies_when_the_servers_have_ended_well_would_wait_for_them(waits: bool) -> None:
    job = supervise()
    if waits:
        end(job, W1)
    end(job, PS0, 0)
    decisions = [] if waits else end(job, W1)
    assert not job.may_restart(W1)
    if not waits:
        assert says(decisions) == (
            "/job:worker/task:1 was killed by SIGKILL (pid 4242) when the job had ended; "
            "it is not started again; the others go on"
        )
    end(job, PS1, 0)
    end(job, W0, 0)
    assert job.over
    assert [failure.task for failure in job.survived] == [W1]


@pytest.mark.parametrize("waits", [False, True])
def test_nobody_needs_a_server_that_dies_when_another_has_ended_well(waits: bool) -> None:
    job = supervise()
    if waits:
        end(job, PS1)
    end(job, PS0, 0)
    if not waits:
        assert "need it no more" in says(end(job, PS1))
    for task in (W0, W1):
        end(job, task, 0)
    assert (job.over, job.failures) == (True, [])


def test_without_restarts_a_server_that_dies_late_is_a_failure() -> None:
    job = supervise(most=0)
    for task in (W0, W1):
        end(job, task, 0)
    end(job, PS1)
    assert [failure.task for failure in job.failures] == [PS1]


def test_servers_alone_that_all_wait_for_their_restart_are_ended_in_time() -> None:
    job = supervise(most=1, tasks=(PS0, W0, W1))
    die_and_return(job, W1)
    end(job, W1)
    end(job, PS0, now=1)
    end(job, W0, 0, now=1.1)  # nobody runs, and the server comes back
    assert not job.over
    assert tick(job) == [Restart(PS0)]
    assert job.deadline == 1.1 + LIMITS.servers
