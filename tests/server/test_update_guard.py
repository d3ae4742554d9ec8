"""An update that a process has left half done is made whole by the next one, to the last bit."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from argosy.protocol.joining import OptimizerSpec
from argosy.protocol.layout import Layout, ParameterSpec, extend
from argosy.server import chunked_update, update_guard
from argosy.server.durable_memory import DurableMemory, OrdinaryMemory
from argosy.server.shard import Shard
from argosy.server.update_guard import UpdateGuard
from argosy.store.optimizers import describe
from argosy.store.placement import Greedy, place

SIZES = (3000, 1, 0, 2500)
OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "AdamW amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
}


class Killed(Exception):
    """The process ends here."""


Open = Callable[[], DurableMemory]


@pytest.fixture
def opened() -> Iterator[Open]:
    """A process's view of the same memory, each time."""
    made = os.memfd_create("test")
    views: list[DurableMemory] = []

    def view() -> DurableMemory:
        views.append(DurableMemory(os.dup(made)))
        return views[-1]

    yield view
    os.close(made)
    for each in views:
        each.close()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks for each block."""
    monkeypatch.setattr(chunked_update, "chunk_of", lambda _: 1024)
    monkeypatch.setattr("argosy.server.shard.chunk_of", lambda _: 1024)


def spec_of(name: str) -> OptimizerSpec:
    return describe(OPTIMIZERS[name]([torch.nn.Parameter(torch.zeros(2))]))


def layout() -> Layout:
    specs = [ParameterSpec(f"p{n}", (size,), "float32", 0) for n, size in enumerate(SIZES)]
    return extend(Layout(), specs, place(Greedy(), specs, [0]), 4 * 4000)


def values() -> list[torch.Tensor]:
    return [torch.arange(block.count, dtype=torch.float32).sin() for block in layout().blocks]


def gradients(step: int) -> list[torch.Tensor]:
    return [torch.arange(b.count, dtype=torch.float32).add(step).cos() for b in layout().blocks]


def absent_at(step: int) -> tuple[int, ...]:
    return (0,) if step in (2, 3) else ()


def make(shard: Shard, spec: OptimizerSpec, step: int) -> None:
    shard.reduce([(shard.accept(gradients(step), absent_at(step)), 1.0)])
    shard.update(spec.groups, 0.5 if step == 4 else 1.0, step)


def everything(shard: Shard) -> list[Any]:
    return [[t.clone() for t in block.tensors.values()] + [block.steps] for block in shard.blocks()]


def same(one: list[Any], other: list[Any]) -> bool:
    pairs = [pair for mine, theirs in zip(one, other, strict=True) for pair in zip(mine, theirs, strict=True)]
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def begin(memory: DurableMemory | OrdinaryMemory, spec: OptimizerSpec) -> Shard:
    shard = Shard(0, memory)
    shard.average = 0.9
    shard.extend(layout(), spec, None if memory.found else values())
    return shard


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_guarded_updates_give_the_same_bits(opened: Open, name: str) -> None:
    spec = spec_of(name)
    plain, guarded = begin(OrdinaryMemory(), spec), begin(opened(), spec)
    for step in range(1, 6):
        make(plain, spec, step)
        make(guarded, spec, step)
        assert same(everything(plain), everything(guarded))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_that_was_cut_in_half_is_made_whole(
    monkeypatch: pytest.MonkeyPatch, opened: Open, name: str
) -> None:
    """The process ends in the middle of every chunk of every step in turn, and once right after it."""
    spec = spec_of(name)
    plain, shard = begin(OrdinaryMemory(), spec), begin(opened(), spec)
    change = UpdateGuard.change
    left = [0]

    def fragile(
        self: UpdateGuard,
        spans: update_guard.Spans,
        action: Callable[[], None],
        passed: Callable[[], None],
    ) -> None:
        def torn() -> None:
            if left[0] == 0:
                for address, size in spans:  # half of it is changed
                    ctypes.memset(address, 77, size // 2)
                raise Killed
            left[0] -= 1
            action()

        change(self, spans, torn, passed)

    monkeypatch.setattr(UpdateGuard, "change", fragile)
    deaths = 0
    for step in range(1, 6):
        monkeypatch.setattr(UpdateGuard, "change", change)
        make(plain, spec, step)
        monkeypatch.setattr(UpdateGuard, "change", fragile)
        counts = shard.counts()  # as they were committed
        for place_of_death in range(40):
            left[0] = 1 if place_of_death else 0
            try:
                make(shard, spec, step)
                break
            except Killed:
                deaths += 1
            memory = opened()
            assert memory.found
            shard = begin(memory, spec)
            shard.recall(counts, spec.groups)
        assert same(everything(plain), everything(shard)), step
        # It ends once more, before anything of the step is kept: all chunks are done already.
        shard = begin(opened(), spec)
        shard.recall(counts, spec.groups)
        make(shard, spec, step)
        assert same(everything(plain), everything(shard)), step
    assert deaths > 20
