"""Where tasks sit when they outnumber the cores: servers keep to a core each, workers let them go first.

A server runs for a fraction of a millisecond at a time, on memory that it alone uses. Left to the scheduler
it wakes on whichever core is free, drives out what is in that core's caches, and is driven out by the worker
that it has just answered. Workers may run anywhere: what they start themselves inherits where they may run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

from argosy.cluster.spec import Task


def seats(tasks: Sequence[Task], cores: Sequence[int], first: int = 0) -> dict[Task, int]:
    """The core of each server, counted from `first`; none if there is a core for every task."""
    servers = [task for task in tasks if task.job == "ps"]
    if len(tasks) <= len(cores):
        return {}
    return {server: cores[(first + place) % len(cores)] for place, server in enumerate(servers)}


def seat(pid: int, task: Task, plan: Mapping[Task, int]) -> None:
    """Give a task that was just started its place; where that is not allowed, it does without."""
    with contextlib.suppress(OSError):
        if task in plan:
            os.sched_setaffinity(pid, {plan[task]})
        elif plan and task.job == "worker":
            os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
