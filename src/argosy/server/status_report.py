"""How the job stands: what the coordinator answers, in lines for a person and as plain data."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from argosy.cluster.spec import ClusterSpec, Task
from argosy.protocol.asking import (
    JobStatus,
    Stacks,
    StacksOffer,
    StatusReport,
    StatusRequest,
    WaitingReport,
)
from argosy.protocol.decisions import Decision
from argosy.server.connected_tasks import ConnectedTasks
from argosy.server.coordinator import Coordinator
from argosy.server.stack_inquiry import StackInquiry
from argosy.wire.channel import Listener, Peer

_DECISIONS = 50


class StatusAnswers:
    """Of one server, to everybody who asks. `waiting`: for whom nothing goes on."""

    def __init__(
        self,
        cluster: ClusterSpec,
        listener: Listener,
        coordinator: Coordinator | None,
        waiting: Callable[[], WaitingReport],
        connected: ConnectedTasks,
    ) -> None:
        self._cluster = cluster
        self._listener = listener
        self._coordinator = coordinator
        self._waiting = waiting
        self._inquiry = StackInquiry(cluster, listener, connected)
        self._recent: deque[tuple[float, Decision]] = deque(maxlen=_DECISIONS)

    def hear(self, peer: Peer, header: StatusRequest | StacksOffer | Stacks) -> None:
        """A question, or what is needed to answer one."""
        match header:
            case StatusRequest(stacks=True):
                self.inquire(partial(self._listener.send, peer))
            case StatusRequest():
                self._listener.send(peer, self._report())
            case StacksOffer():
                self._inquiry.offer(peer, header)
            case Stacks():
                self._inquiry.take(peer, header)

    def inquire(self, answer: Callable[[StatusReport], object]) -> None:
        """Ask the workers waited for what they are doing; `answer` gets all that there is to say, soon."""
        self._inquiry.begin(msgspec.structs.replace(self._report(), lines=tuple(self.lines())), answer)

    def note(self, decisions: Iterable[Decision]) -> None:
        """The coordinator has decided this."""
        now = time.monotonic()
        self._recent.extend((now, decision) for decision in decisions)

    def lines(self) -> list[str]:
        """How the job stands, and what was decided last."""
        now = time.monotonic()
        recent = [f"    {now - when:.1f} s ago: {decision}" for when, decision in self._recent]
        return [*self._report().lines, *(["decided last:"] if recent else []), *recent]

    def _report(self) -> StatusReport:
        return report(self._cluster, self._coordinator, self._waiting())

    def look(self, now: float) -> None:
        """Answer those who have waited long enough."""
        self._inquiry.look(now)

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return self._inquiry.busy


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
    lines += coordinator.changes.lines(time.time())
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
        changes=coordinator.changes.latest(),
    )
