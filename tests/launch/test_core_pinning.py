"""More tasks than cores: each keeps to a core, and workers let servers go first."""

from __future__ import annotations

import os
import re
import signal

import pytest
from launching import Launcher

from argosy.cluster.spec import Task
from argosy.launch.core_pinning import assign_cores

SERVERS = [Task("ps", 0), Task("ps", 1), Task("ps", 2)]
WORKERS = [Task("worker", 0), Task("worker", 1)]


def test_servers_and_workers_are_spread_over_the_cores() -> None:
    places = {SERVERS[0]: 4, SERVERS[1]: 6, SERVERS[2]: 4, WORKERS[0]: 4, WORKERS[1]: 6}
    assert assign_cores([*SERVERS, *WORKERS], [4, 6]) == places


def test_another_job_begins_with_another_core() -> None:
    places = {SERVERS[0]: 6, WORKERS[0]: 6, WORKERS[1]: 4}
    assert assign_cores([SERVERS[0], *WORKERS], [4, 6], first=1) == places


@pytest.mark.parametrize("cores", [(0, 1, 2), (0, 1, 2, 3)])
def test_workers_that_do_not_fill_the_cores_evenly_may_run_anywhere(cores: tuple[int, ...]) -> None:
    places = {SERVERS[0]: 0, SERVERS[1]: 1, SERVERS[2]: 2}
    assert assign_cores([*SERVERS, *WORKERS], cores) == places


def test_a_core_for_every_task_leaves_the_choice_to_the_scheduler() -> None:
    assert assign_cores([SERVERS[0], *WORKERS], [0, 1, 2]) == {}


def test_without_servers_nobody_is_seated() -> None:
    assert assign_cores(WORKERS, [0]) == {}


@pytest.mark.processes
@pytest.mark.timeout(60)
def test_tasks_are_seated(launcher: Launcher) -> None:
    cores = os.sched_getaffinity(0)
    launch = launcher.start("hang()", "--ps", "1", "--workers", str(len(cores)), "--threads", "1")
    launch.until(f"started /job:worker/task:{len(cores) - 1} pid")  # the last; each has its seat by then
    server, *workers = map(int, re.findall(r"^started \S+ pid (\d+) at", launch.text, re.MULTILINE))
    assert len(os.sched_getaffinity(server)) == 1
    assert os.sched_getscheduler(server) != os.SCHED_BATCH
    assert len(workers) == len(cores)
    assert set().union(*map(os.sched_getaffinity, workers)) == cores
    for worker in workers:
        assert len(os.sched_getaffinity(worker)) == 1
        assert os.sched_getscheduler(worker) == os.SCHED_BATCH
    launch.process.terminate()
    assert launch.finish() == 128 + signal.SIGTERM
