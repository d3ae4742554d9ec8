"""The state of an optimizer that was used before, until the blocks that it belongs to are registered.

`OrderExecutor` owns it. The chief sends one slot a message; registration uses them all.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from argosy.protocol.joining import SlotValues
from argosy.server.durable_memory import Memory
from argosy.server.executor_state import GivenState, KeptTensor
from argosy.server.shard import Shard
from argosy.wire.message import Message


class GivenSlots:
    """Of one server."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._slots: dict[str, Sequence[torch.Tensor]] = {}
        self._steps: Sequence[Sequence[tuple[int, int, float]]] = ()

    def give(self, message: Message[SlotValues]) -> None:
        """A slot of the blocks that are about to be registered."""
        self._slots[message.header.name] = [tensor.clone() for tensor in message.tensors]
        self._steps = message.header.steps
        if self._memory.lasts:
            kept = [KeptTensor.of(tensor) for tensor in message.tensors]
            given = GivenState(message.header.name, kept, message.header.steps)
            self._memory.put(f"given/{given.name}", msgspec.msgpack.encode(given))

    def use(self, shard: Shard, known: int) -> None:
        """Begin the blocks of a shard from the `known`-th on with what was given, if anything was."""
        if self._slots:
            shard.begin_from(known, self._slots, self._steps)
            for name in self._slots:
                self._memory.drop(f"given/{name}")
            self._slots = {}

    def recall(self) -> None:
        """What the last process of this server was given."""
        for name in self._memory.names("given/"):
            given = msgspec.msgpack.decode(self._memory.get(name) or b"", type=GivenState)
            self._slots[given.name] = [each.tensor() for each in given.tensors]
            self._steps = given.steps
