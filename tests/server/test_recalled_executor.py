"""A server's executor, made anew from what the process before it has kept."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
import torch

from argosy.modes import Async
from argosy.protocol.decisions import Answer, Apply, Decision, Part
from argosy.protocol.joining import Register
from argosy.protocol.layout import Layout, ParameterSpec, extend
from argosy.protocol.training import PushRequest
from argosy.server.checkpointing import ShardSaving
from argosy.server.durable_memory import DurableMemory
from argosy.server.order_executor import OrderExecutor
from argosy.store.optimizers import describe
from argosy.store.placement import Greedy, place
from argosy.wire.message import Message


class Killed(Exception):
    """The process ends here."""


class Lives:
    """The processes of one server, one after the other."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("test")
        self._memories: list[DurableMemory] = []
        self.executor, self.memory = self.begin()

    def begin(self) -> tuple[OrderExecutor, DurableMemory]:
        memory = DurableMemory(os.dup(self._descriptor))
        self._memories.append(memory)
        saving = ShardSaving(0, 1, memory)
        self.executor = OrderExecutor(
            0, lambda *_: None, lambda *_: None, lambda _: True, saving, 2, memory, self.keep
        )
        self.memory = memory
        return self.executor, memory

    def keep(self) -> None:
        self.executor.keep()
        self.memory.commit()

    def close(self) -> None:
        for memory in self._memories:
            memory.close()
        os.close(self._descriptor)
        del self.executor
        gc.collect()  # the executor and its way to answer know each other


@pytest.fixture
def lives() -> Iterator[Lives]:
    made = Lives()
    yield made
    made.close()


def push(executor: OrderExecutor) -> None:
    for worker in (0, 1):
        executor.hold(worker, Message(PushRequest(1, 0), [torch.ones(4)]))


@pytest.mark.parametrize("between", [(), (Answer(0, 1, "applied", 1),)])
@pytest.mark.parametrize("dies_at", [1, 2])
def test_two_updates_of_one_list_count_once_each(
    lives: Lives, between: tuple[Decision, ...], dies_at: int
) -> None:
    specs = [ParameterSpec("a", (4,), "float32", 0)]
    layout = extend(Layout(), specs, place(Greedy(), specs, [0]), 16)
    plain = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=1.0)
    lives.executor.register(Message(Register(layout, describe(plain), Async()), [torch.zeros(4)]))
    push(lives.executor)
    lives.executor.order([Apply(1, (Part(0, 1),)), *between, Apply(2, (Part(1, 1),))])
    lives.keep()
    guard = lives.memory.guard
    assert guard is not None
    begin = guard.begin

    def fragile(step: int) -> None:
        begin(step)
        if step == dies_at:
            raise Killed

    guard.begin = fragile  # type: ignore[method-assign]
    with pytest.raises(Killed):
        lives.executor.carry_out()
    executor, _ = lives.begin()
    executor.recall()
    push(executor)
    executor.carry_out()
    assert executor.step == 2
    assert executor.shard.live()[0].tolist() == [-2.0] * 4
