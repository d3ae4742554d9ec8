"""Which core each task keeps to when tasks outnumber the cores; workers let servers go first.

A server runs for a fraction of a millisecond at a time, on memory that it alone uses, while a worker waits
for it. Left to the scheduler both wake on whichever core seems free: they drive out what is in its caches,
and wait behind another worker while the core that they came from has nothing to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Mapping, Sequence

from argosy.cluster.spec import Task

# In seconds. A server finishes what it was woken for within its slice; a worker's is as long as they get.
_SERVER_SLICE = 3e-3
_WORKER_SLICE = 100e-3
# Python and the C library have no function for it.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}.get(platform.machine())
# size, policy, flags, nice, priority, runtime, deadline, period
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def assign_cores(tasks: Sequence[Task], cores: Sequence[int], first: int = 0) -> dict[Task, int]:
    """The core of each task, counted from `first`; none if there is a core for every task, or no server.

    Workers that would not fill the cores evenly have none: they are better moved about.
    """
    servers = [task for task in tasks if task.job == "ps"]
    workers = [task for task in tasks if task.job == "worker"]
    if not servers or len(tasks) <= len(cores):
        return {}
    pinned = [servers] if len(workers) % len(cores) else [servers, workers]
    return {task: cores[(first + place) % len(cores)] for group in pinned for place, task in enumerate(group)}


def pin(pid: int, task: Task, places: Mapping[Task, int]) -> None:
    """Pin a task that was just started to its core; where that is not allowed, it is not pinned."""
    if not places:
        return
    with contextlib.suppress(OSError):
        if task in places:
            os.sched_setaffinity(pid, {places[task]})
        if task.job == "worker":
            os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))
        set_slice(pid, _WORKER_SLICE if task.job == "worker" else _SERVER_SLICE)


def set_slice(pid: int, seconds: float) -> None:
    """Ask for a slice for a process of ours: how long it may run before another gets its turn.

    Of two that share a core, the one with the shorter slice goes first when it wakes, and runs undisturbed
    for its slice. Neither gets more of the core for it. Linux heeds it since 6.12; earlier kernels ignore it.
    Raises OSError where that is not allowed.
    """
    if _SCHED_SETATTR is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, pid)
    attributes = _ATTRIBUTES.pack(
        _ATTRIBUTES.size, os.sched_getscheduler(pid), 0, nice, 0, round(seconds * 1e9), 0, 0
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SCHED_SETATTR, pid, attributes, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
