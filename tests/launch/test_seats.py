"""More tasks than cores: servers keep to a core each, workers let them go first."""

from __future__ import annotations

import os

import pytest
from launching import Launcher

from argosy.cluster.spec import Task
from argosy.launch.seats import seats

SERVERS = [Task("ps", 0), Task("ps", 1), Task("ps", 2)]
WORKERS = [Task("worker", 0), Task("worker", 1)]


def test_servers_are_spread_over_the_cores() -> None:
    assert seats([*SERVERS, *WORKERS], [4, 6]) == {SERVERS[0]: 4, SERVERS[1]: 6, SERVERS[2]: 4}


def test_another_job_begins_with_another_core() -> None:
    assert seats([SERVERS[0], *WORKERS], [4, 6], first=1) == {SERVERS[0]: 6}


def test_a_core_for_every_task_leaves_the_choice_to_the_scheduler() -> None:
    assert seats([SERVERS[0], *WORKERS], [0, 1, 2]) == {}


def test_without_servers_nobody_is_seated() -> None:
    assert seats(WORKERS, [0]) == {}


@pytest.mark.processes
@pytest.mark.timeout(60)
def test_tasks_are_seated(launcher: Launcher) -> None:
    cores = len(os.sched_getaffinity(0))
    body = """
    def seat():
        return len(os.sched_getaffinity(0)), os.sched_getscheduler(0) == os.SCHED_BATCH

    deadline = time.monotonic() + 20
    while seat()[job == "worker"] != 1 and time.monotonic() < deadline:  # it gets its seat while it starts
        time.sleep(0.01)
    print(*seat())
    """
    done = launcher.run(body, "--ps", "1", "--workers", str(cores), "--threads", "1")
    assert done.process.returncode == 0
    assert done.lines("/job:ps/task:0") == ["1 False"]
    assert done.lines("/job:worker/task:0") == [f"{cores} True"]
