"""How a job stands: what the coordinator answers, and how it is asked, once or again and again."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.errors import WaitTimeout
from argosy.protocol.asking import JobStatus, StatusReport, StatusRequest, WaitingReport

if TYPE_CHECKING:
    from argosy.store.coordinator import Coordinator
    from argosy.wire.channel import Channel

ANSWER_WITHIN = 5.0


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


class Inquirer:
    """Asks the coordinator again and again, over a channel that is its own."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @staticmethod
    def at(address: str, name: str = "status") -> Inquirer:
        """One who asks the server at `host:port`."""
        from argosy.wire.zmq_channel import ZmqChannel

        identity = f"{name}-{os.getpid()}-{time.monotonic_ns()}".encode()
        # A question that nobody has taken is worth no wait at the end.
        return Inquirer(ZmqChannel(Address.parse(address, "address"), identity, linger=0.0))

    def send(self) -> None:
        """Ask; `receive` brings the answer."""
        self._channel.send(StatusRequest())

    def receive(self, timeout: float) -> StatusReport | None:
        """An answer; None if there is none in time."""
        message = self._channel.receive(timeout)
        return message.header if message is not None and isinstance(message.header, StatusReport) else None

    def ask(self, timeout: float) -> JobStatus | None:
        """How the job stands now; None if nobody answers in time."""
        while self.receive(0.0) is not None:
            """An answer that came too late."""
        self.send()
        answer = self.receive(timeout)
        return None if answer is None else answer.job

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


def query(address: str) -> str:
    """Ask the server at `host:port`; raises WaitTimeout if nobody answers."""
    inquirer = Inquirer.at(address)
    try:
        inquirer.send()
        answer = inquirer.receive(ANSWER_WITHIN)
    finally:
        inquirer.close()
    if answer is None:
        raise WaitTimeout("no answer", [f"a server at {address}"], ANSWER_WITHIN)
    return "\n".join(answer.lines)
