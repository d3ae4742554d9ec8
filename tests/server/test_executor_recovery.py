"""An executor whose process ends and begins again goes on as if nothing had happened, to the last bit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest
import torch

from argosy.cluster.spec import ClusterSpec, Task
from argosy.modes import Mode, Sync
from argosy.protocol.decisions import Answer, Apply, Decision, Part
from argosy.protocol.header import Header
from argosy.protocol.joining import Register, SlotValues
from argosy.protocol.layout import Layout, ParameterSpec, extend
from argosy.protocol.training import PushRequest
from argosy.server.checkpointing import ShardSaving
from argosy.server.durable_memory import DurableMemory, Memory, OrdinaryMemory
from argosy.server.lost_gradients import LostGradients
from argosy.server.order_executor import OrderExecutor
from argosy.server.update_guard import Spans, UpdateGuard
from argosy.store.optimizers import describe, groups_of
from argosy.store.placement import Greedy, place
from argosy.wire.message import Message

SIZE = 3000


class Killed(Exception):
    """The process ends here."""


def adam(lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=lr)


def gradient(number: int) -> torch.Tensor:
    return torch.arange(SIZE, dtype=torch.float32).add(number).cos()


class Lives:
    """One process of a server after the other, on memory that stays; `lasting=False`: it never dies."""

    def __init__(
        self, mode: Mode | None = None, lasting: bool = True, clip_norm: float | None = None
    ) -> None:
        self._file = os.memfd_create("test") if lasting else None
        self._views: list[DurableMemory] = []
        self.answers: list[tuple[int, Header]] = []
        self.norms: list[tuple[int, float]] = []
        specs = [ParameterSpec("a", (SIZE,), "float32", 0)]
        layout = extend(Layout(), specs, place(Greedy(), specs, [0]))
        self.register = Register(layout, describe(adam()), mode or Sync(), clip_norm=clip_norm)
        self.executor = self._begin()

    def _begin(self) -> OrderExecutor:
        memory: Memory = OrdinaryMemory()
        if self._file is not None:
            memory = DurableMemory(os.dup(self._file))
            self._views.append(memory)
        self._memory = memory

        def reply(worker: int, header: Header, tensors: Sequence[torch.Tensor]) -> None:
            self.answers.append((worker, header))

        def report(step: int, square: float) -> None:
            self.norms.append((step, square))

        saving = ShardSaving(0, 1, memory)
        executor = OrderExecutor(0, reply, report, lambda _: True, saving, 2, memory, self.keep)
        if memory.found:
            executor.recall()
        return executor

    def begin_training(self) -> None:
        self.executor.register(Message(self.register, [torch.arange(SIZE, dtype=torch.float32).sin()]))
        self.keep()

    def keep(self) -> None:
        if self._memory.lasts:
            self.executor.keep()
            self._memory.commit()

    def die(self) -> None:
        """Nothing stays but the memory."""
        if self._file is not None:
            self.answers.clear()
            self.executor = self._begin()

    def push(self, worker: int, seq: int, **fields: object) -> bool:
        request = msgspec.structs.replace(PushRequest(seq, 0), **fields)
        held = self.executor.hold(worker, Message(request, [gradient(100 * worker + seq)]))
        self.executor.resume()
        return held

    def order(self, *decisions: Decision) -> None:
        """As the coordinator does: what is decided is kept before it is done."""
        self.executor.order(decisions)
        self.keep()
        self.executor.carry_out()
        self.keep()

    def state(self) -> list[torch.Tensor]:
        return [t.clone() for block in self.executor.shard.blocks() for t in block.tensors.values()]

    def close(self) -> None:
        del self.executor
        for view in self._views:
            view.close()
        if self._file is not None:
            os.close(self._file)


Make = Callable[..., Lives]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr("argosy.server.chunked_update.chunk_of", lambda _: 1024)
    monkeypatch.setattr("argosy.server.shard.chunk_of", lambda _: 1024)
    made: list[Lives] = []

    def create(*args: object, **options: object) -> Lives:
        made.append(Lives(*args, **options))  # type: ignore[arg-type]
        made[-1].begin_training()
        return made[-1]

    yield create
    for each in made:
        each.close()


def same(one: Lives, other: Lives) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state(), other.state(), strict=True))


def applied(step: int) -> list[Decision]:
    """A step of both workers."""
    parts = (Part(0, step), Part(1, step))
    return [Apply(step, parts), *(Answer(worker, step, "applied", step) for worker in (0, 1))]


def test_it_dies_between_any_two_steps(make: Make) -> None:
    plain, server = make(lasting=False), make()
    for step in range(1, 6):
        for each in (plain, server):
            for worker in (0, 1):
                assert each.push(worker, step)
            each.order(*applied(step))
        server.die()
        assert server.executor.step == step
        assert same(plain, server), step


def test_it_dies_in_the_middle_of_every_update(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is kept; the pushes are sent again, and the update is made whole."""
    plain, server = make(lasting=False), make()
    change, left = UpdateGuard.change, [0]

    def fragile(
        self: UpdateGuard, spans: Spans, action: Callable[[], None], passed: Callable[[], None]
    ) -> None:
        def torn() -> None:
            action()
            if left[0] == 0:
                raise Killed
            left[0] -= 1

        change(self, spans, torn, passed)

    monkeypatch.setattr(UpdateGuard, "change", fragile)
    for step in range(1, 5):
        left[0] = step % 3
        for each in (plain, server):
            for worker in (0, 1):
                each.push(worker, step)
        plain.order(*applied(step))
        with pytest.raises(Killed):
            server.order(*applied(step))
        server.die()
        left[0] = 100
        assert server.executor.lacks() == [(step, (0, step)), (step, (1, step))]
        assert server.push(1, step)
        assert not server.answers, "it has answered before the step was made"
        assert server.push(0, step)
        assert [worker for worker, _ in server.answers] == [0, 1]
        server.keep()
        assert same(plain, server), step


def test_a_push_that_was_answered_is_answered_again_and_does_not_count_twice(make: Make) -> None:
    server = make()
    for worker in (0, 1):
        server.push(worker, 1)
    server.order(*applied(1))
    before = server.state()
    server.die()
    assert not server.push(1, 1)
    assert [worker for worker, _ in server.answers] == [1]
    assert all(torch.equal(a, b) for a, b in zip(before, server.state(), strict=True))


@pytest.mark.parametrize("status", ["held", "folded"])
def test_a_push_whose_worker_has_gone_on_outlives_the_process(make: Make, status: str) -> None:
    plain, server = make(lasting=False), make()
    held = Answer(1, 1, status, 0)  # type: ignore[arg-type]
    for each in (plain, server):
        each.push(1, 1)
        each.order(held)
    server.die()
    for each in (plain, server):
        each.push(1, 2)
        each.order(Apply(1, (Part(1, 1), Part(1, 2))), Answer(1, 2, "applied", 1))
    assert same(plain, server)
    server.die()
    assert same(plain, server)
    assert not [name for name in server._memory.names("held/") if name == "held/1/1"]


@pytest.mark.parametrize("status", ["held", "folded"])
def test_nobody_is_told_that_a_push_is_held_which_is_not_here(make: Make, status: str) -> None:
    """Its worker would go on, and write over the only copy that there is."""
    plain, server = make(lasting=False), make()
    held = Answer(1, 1, status, 0)  # type: ignore[arg-type]
    plain.push(1, 1)
    plain.order(held)
    server.push(1, 1)
    server.die()
    server.order(held)
    assert not server.answers
    assert server.executor.lacks() == [(0, (1, 1))]
    server.push(1, 1)
    assert len(server.answers) == 1
    server.keep()
    server.die()
    for each in (plain, server):
        each.order(Apply(1, (Part(1, 1),)))
    assert same(plain, server)


def test_a_clipped_step_finds_its_factor(make: Make) -> None:
    plain, server = make(lasting=False, clip_norm=1.0), make(clip_norm=1.0)
    for each in (plain, server):
        for worker in (0, 1):
            each.push(worker, 1)
        each.order(*applied(1))
        assert [step for step, _ in each.norms] == [1]
        each.executor.expect_factor(1, 0.25)
    plain.executor.go_on()
    server.keep()
    server.die()
    for worker in (0, 1):
        server.push(worker, 1)
    server.executor.go_on()
    assert server.executor.step == 1
    assert same(plain, server)


def test_a_gradient_in_memory_that_this_process_has_not_seen_is_not_taken(make: Make) -> None:
    server = make()
    server.executor.pushes.keep_gradient_memory(1, [gradient(0)])
    server.keep()
    server.die()
    server.executor.hold_shared(1, PushRequest(1, 0, shared=True))
    server.order(Apply(1, (Part(1, 1),)))
    assert server.executor.step == 0
    assert server.executor.lacks() == [(1, (1, 1))]
    server.executor.pushes.keep_gradient_memory(1, [gradient(0)])
    assert server.executor.hold(1, Message(PushRequest(1, 0, shared=True)))
    server.executor.resume()
    assert server.executor.step == 1


def test_hyperparameters_that_a_worker_has_sent_stay(make: Make) -> None:
    plain, server = make(lasting=False), make()
    for each in (plain, server):
        for worker in (0, 1):
            each.push(worker, 1, groups=tuple(groups_of(adam(lr=0.5))))
        each.order(*applied(1))
    server.die()
    for each in (plain, server):
        for worker in (0, 1):
            each.push(worker, 2)  # they send them only when they change
        each.order(*applied(2))
    assert same(plain, server)


def test_what_an_optimizer_had_before_is_there_when_its_blocks_are_registered() -> None:
    lives = [Lives(lasting=False), Lives()]
    for each in lives:
        for name in ("exp_avg", "exp_avg_sq"):
            steps = (((0, SIZE, 7.0),),)
            each.executor.give(Message(SlotValues(name, steps), [torch.full((SIZE,), 0.5)]))
        each.keep()
        each.die()
        each.begin_training()
        for worker in (0, 1):
            each.push(worker, 1)
        each.order(*applied(1))
    assert same(*lives)
    for each in lives:
        each.close()


# --- gradients that nobody has ------------------------------------------------------------------------------
LIFE = 1 << 40


def test_a_gradient_whose_worker_has_been_replaced_is_lost(make: Make) -> None:
    server = make()
    cluster = ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "b:2"]})
    look = LostGradients(Task("ps", 0), cluster, server.executor, None).look
    assert look(0.0) is None
    server.push(0, LIFE + 1)
    server.push(1, LIFE + 1)
    server.die()
    server.order(Apply(1, (Part(0, LIFE + 1), Part(1, LIFE + 1))))
    look = LostGradients(Task("ps", 0), cluster, server.executor, None).look
    server.push(0, LIFE + 1)
    assert look(1.0) is None
    server.push(1, 2 * LIFE + 1, kind="pull")  # another process, in the same place
    assert look(2.0) is None  # what the first has sent may still come
    found = look(3.1)
    assert found is not None
    assert found[0] == Task("worker", 1)
    assert found[1].startswith("its gradient for step 1 was lost when /job:ps/task:0 at a:1 died, and the ")
    assert look(4.2) is None  # it is said once


def test_a_gradient_that_comes_late_is_not_lost(make: Make) -> None:
    server = make()
    cluster = ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "b:2"]})
    server.push(1, LIFE + 1)
    server.die()
    look = LostGradients(Task("ps", 0), cluster, server.executor, None).look
    server.order(Apply(1, (Part(1, LIFE + 1),)))
    server.push(1, 2 * LIFE + 1, kind="pull")
    assert look(1.0) is None
    server.push(1, LIFE + 1)
    assert server.executor.step == 1
    assert look(9.0) is None
