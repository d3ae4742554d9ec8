"""What a worker asks of a server before it trains: to open a directory, to register the model, and the like.

Each of these changes something, so it is done once. A connection may break before the answer comes; the
worker then sends the same request again, and gets the answer that it got before.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ConfigError, WireError
from argosy.protocol.header import Header
from argosy.protocol.joining import (
    GradientMemory,
    GradientMemorySeen,
    Refused,
    Register,
    Registered,
    SlotValues,
)
from argosy.protocol.layout import check_layout
from argosy.protocol.saving import OpenDirectory, ResumePoint
from argosy.server.checkpointing import ShardSaving
from argosy.server.coordinator import Coordinator
from argosy.server.durable_memory import Memory
from argosy.server.handshake import refusal
from argosy.server.order_executor import OrderExecutor
from argosy.wire.message import Message

Request: TypeAlias = Register | SlotValues | GradientMemory | OpenDirectory


class WorkerRequests:
    """Of one server."""

    def __init__(
        self,
        cluster: ClusterSpec,
        executor: OrderExecutor,
        saving: ShardSaving,
        coordinator: Coordinator | None,
        memory: Memory,
    ) -> None:
        self._memory = memory
        self._servers = cluster.count("ps")
        self._executor = executor
        self._saving = saving
        self._coordinator = coordinator
        self._answered: dict[int, tuple[int, Header]] = {}  # each worker's latest: its number, its answer

    def answer(self, task: Task, message: Message[Request]) -> Header:
        """The answer to a request, which is done if it is new. Raises WireError."""
        number, answer = self._answered.get(task.index, (0, None))
        # Memory that an earlier process of this server saw must be shown to this one.
        seen = isinstance(message.header, GradientMemory)
        if answer is None or number != message.header.number or seen:
            answer = self._do(task, message)
            self._answered[task.index] = (message.header.number, answer)
            if self._memory.lasts:
                self._memory.put("answers", msgspec.msgpack.encode(self._answered))
        return answer

    def recall(self) -> None:
        """Go on where the last process of this server was."""
        if (kept := self._memory.get("answers")) is not None:
            self._answered = msgspec.msgpack.decode(kept, type=dict[int, tuple[int, Header]])

    def _do(self, task: Task, message: Message[Request]) -> Header:
        header = message.header
        if isinstance(header, GradientMemory):
            self._executor.pushes.keep_gradient_memory(task.index, message.tensors)
            return GradientMemorySeen(header.number)
        if task != Task("worker", 0):
            raise WireError(f"only the chief sends {type(header).__name__}")
        if isinstance(header, SlotValues):
            self._executor.give(Message(header, message.tensors))
            return GradientMemorySeen(header.number)
        if isinstance(header, OpenDirectory):
            if self._coordinator is None:
                raise WireError("only the coordinator opens a directory")
            return self._saving.open(header)
        return self._register(Message(header, message.tensors))

    def _register(self, message: Message[Register]) -> Registered | Refused:
        header = message.header
        check_layout(header.layout, self._servers, len(header.optimizer.groups))
        try:
            self._executor.register(message)
        except ConfigError as error:
            return refusal(error)
        if self._coordinator is not None:
            self._coordinator.register(header, self._executor.step, self._saving.checkpoints)
        return Registered(header.number)


def resume_point(coordinator: Coordinator, saving: ShardSaving, worker: int, number: int) -> ResumePoint:
    """From where a worker goes on: from what its pushes carried, if it comes again, or from a checkpoint."""
    carried = coordinator.states.of(worker)
    state = b"" if carried is not None else saving.state_of(worker)
    return ResumePoint(coordinator.step, state, saving.groups, number, carried)
