"""How the job stands: what the coordinator answers, in lines for a person and as plain data."""

from __future__ import annotations

import time

from argosy.cluster.spec import ClusterSpec, Task
from argosy.protocol.asking import JobStatus, StatusReport, WaitingReport
from argosy.server.coordinator import Coordinator


def report(cluster: ClusterSpec, coordinator: Coordinator | None, waiting: WaitingReport) -> StatusReport:
    """The coordinator's answer; another server's says whom to ask."""
    if coordinator is None:
        return StatusReport((f"this is not the coordinator; ask {cluster.address(Task('ps', 0))}",))
    job = _job(cluster, coordinator, waiting)
    last = "" if job.last_step is None else f" of {job.last_step}"
    lines = [f"global step {job.step}{last}, mode {job.mode or 'not registered yet'}"]
    tasks = cluster.tasks("worker")
    for task, worker in zip(tasks, job.workers, strict=True):
        counts = f"{worker.applied} gradients" if worker.applied else ""
        parts = [worker.presence, counts]
        parts += [f"staleness {worker.mean_staleness:.1f}"] if worker.total_staleness else []
        for name in ("dropped", "folded", "skipped"):
            parts += [f"{number} {name}"] if (number := getattr(worker, name)) else []
        parts += [f"{name} {value:.4g}" for name, value in worker.numbers.items()]
        parts += [f"logged at step {worker.logged}"] if worker.numbers else []
        parts += [f"heard {worker.heard:.1f} s ago"] if worker.heard is not None else []
        lines.append(f"{cluster.describe(task)}: {', '.join(part for part in parts if part)}")
    if job.queue:
        lines.append(f"gradients held for a step to come: {job.queue}")
    lines += [f"waiting for {who}, {waiting.seconds:.0f} s" for who in waiting.tasks]
    return StatusReport(tuple(lines), job)


def _job(cluster: ClusterSpec, coordinator: Coordinator, waiting: WaitingReport) -> JobStatus:
    return JobStatus(
        step=coordinator.step,
        clock=time.monotonic(),
        mode=str(coordinator.mode or ""),
        last_step=coordinator.last_step,
        queue=coordinator.queue,
        workers=tuple(
            coordinator.tally.status(task.index, str(task), coordinator.roster.says(task.index))
            for task in cluster.tasks("worker")
        ),
        waiting=waiting.tasks,
        waited=waiting.seconds,
    )
