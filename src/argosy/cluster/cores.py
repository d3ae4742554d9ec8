"""How many threads a task may use where several of a cluster share one machine."""

from __future__ import annotations

import os
from collections.abc import Mapping

from argosy.cluster.spec import ClusterSpec, Task


def tasks_beside(cluster: ClusterSpec, task: Task) -> int:
    """How many tasks are on this task's machine, itself among them, as far as addresses tell."""
    mine = _machine(cluster, task)
    return sum(_machine(cluster, other) == mine for other in cluster.tasks())


def fair_share(cluster: ClusterSpec, task: Task, cores: int) -> int | None:
    """A task's part of its machine's cores; None if it is alone there, or has no address."""
    if task not in cluster.tasks():
        return None
    tasks = tasks_beside(cluster, task)
    return max(1, cores // tasks) if tasks > 1 else None


def _machine(cluster: ClusterSpec, task: Task) -> str:
    address = cluster.address(task)
    return "loopback" if address.is_loopback else address.host.lower()


def obey_threads(environ: Mapping[str, str] = os.environ) -> None:
    """Let torch use as many threads as OMP_NUM_THREADS says, which it has not seen if it was imported before
    a fork.
    """
    import torch

    told = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if told.isdecimal() and int(told) > 0:
        torch.set_num_threads(int(told))


def share_cores(cluster: ClusterSpec, task: Task, environ: Mapping[str, str] = os.environ) -> None:
    """Let torch use no more threads here than this task's part, unless OMP_NUM_THREADS says how many.

    Tasks that each start a thread a core fight over the cores, and training is many times slower.
    """
    import torch

    if environ.get("OMP_NUM_THREADS"):
        return
    share = fair_share(cluster, task, len(os.sched_getaffinity(0)))
    if share is not None and share < torch.get_num_threads():
        torch.set_num_threads(share)
