"""How a job stands, for a person: what `argosy status HOST:PORT` asks and what the coordinator answers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.errors import WaitTimeout
from argosy.wire.protocol import StatusReport, StatusRequest, Waiting

if TYPE_CHECKING:
    from argosy.store.coordinator import Coordinator

ANSWER_WITHIN = 5.0


def report(cluster: ClusterSpec, coordinator: Coordinator | None, waiting: Waiting) -> tuple[str, ...]:
    """The lines of a status."""
    if coordinator is None:
        return (f"this is not the coordinator; ask {cluster.address(Task('ps', 0))}",)
    lines = [f"global step {coordinator.step}, mode {coordinator.mode or 'not registered yet'}"]
    workers = cluster.tasks("worker")
    lines += [f"{cluster.describe(task)}: {coordinator.roster[task.index].value}" for task in workers]
    lines += [f"waiting for {who}, {waiting.seconds:.0f} s" for who in waiting.tasks]
    return tuple(lines)


def query(address: str) -> str:
    """Ask the server at `host:port`; raises WaitTimeout if nobody answers."""
    from argosy.wire.zmq_channel import ZmqChannel

    channel = ZmqChannel(Address.parse(address, "address"), b"status-%d" % os.getpid())
    try:
        channel.send(StatusRequest())
        message = channel.receive(ANSWER_WITHIN)
    finally:
        channel.close()
    if message is None or not isinstance(message.header, StatusReport):
        raise WaitTimeout("no answer", [f"a server at {address}"], ANSWER_WITHIN)
    return "\n".join(message.header.lines)
