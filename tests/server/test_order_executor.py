"""Pushes on their way through a server: in memory that the worker has shown to it, sent ahead, sent twice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch

from argosy.errors import WireError
from argosy.modes import Async
from argosy.protocol.decisions import Answer, Apply, Forget, Part
from argosy.protocol.header import Header
from argosy.protocol.joining import Register
from argosy.protocol.layout import Layout, ParameterSpec, extend
from argosy.protocol.training import BlockAhead, PushAnswer, PushRequest
from argosy.server.checkpointing import ShardSaving
from argosy.server.durable_memory import OrdinaryMemory
from argosy.server.order_executor import OrderExecutor
from argosy.store.optimizers import describe
from argosy.store.placement import Greedy, place
from argosy.wire.message import Message


class Server:
    """An executor with two parameters of two zeros, in one block or two, and what it has answered."""

    def __init__(self, blocks: int = 1) -> None:
        self.answers: list[tuple[Header, list[list[float]]]] = []
        memory = OrdinaryMemory()
        saving = ShardSaving(0, 1, memory)
        self.executor = OrderExecutor(
            0, self._reply, lambda *_: None, lambda _: True, saving, 2, memory, lambda: None
        )
        specs = [ParameterSpec(name, (2,), "float32", 0) for name in ("a", "b")]
        layout = extend(Layout(), specs, place(Greedy(), specs, [0]), 16 // blocks)
        plain = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=1.0)
        values = [torch.zeros(block.count) for block in layout.blocks]
        self.executor.register(Message(Register(layout, describe(plain), Async()), values))

    def _reply(self, worker: int, header: Header, tensors: Sequence[torch.Tensor]) -> None:
        self.answers.append((header, [tensor.tolist() for tensor in tensors]))

    def push(self, seq: int, *, by_order: bool, absent: tuple[int, ...] = ()) -> list[float]:
        """A push of worker 1 in its gradient memory, applied; the values that it is answered with.

        `by_order`: the coordinator tells of it, and no message comes from the worker.
        """
        request = PushRequest(seq, seq - 1, absent=absent, shared=True)
        if by_order:
            self.executor.hold_shared(1, request)
        else:
            assert self.executor.hold(1, Message(request))
        self.executor.carry_out([Apply(seq, (Part(1, seq),)), Answer(1, seq, "applied", seq)])
        header, (values,) = self.answers[-1]
        assert header == PushAnswer(seq, "applied", seq)
        return values


@pytest.mark.parametrize("by_order", [True, False])
def test_what_lies_in_the_memory_is_applied_as_it_is_then(by_order: bool) -> None:
    server, slot = Server(), torch.tensor([1.0, 2.0, 3.0, 4.0])
    server.executor.pushes.keep_gradient_memory(1, [slot])
    assert server.push(1, by_order=by_order) == [-1, -2, -3, -4]
    slot.fill_(1.0)
    assert server.push(2, by_order=by_order) == [-2, -3, -4, -5]


@pytest.mark.parametrize("by_order", [True, False])
def test_what_a_push_says_is_absent_is_absent_from_that_push_alone(by_order: bool) -> None:
    server = Server()
    server.executor.pushes.keep_gradient_memory(1, [torch.ones(4)])
    assert server.push(1, by_order=by_order, absent=(0,)) == [0, 0, -1, -1]
    assert server.push(2, by_order=by_order) == [-1, -1, -2, -2]


def test_the_memory_of_a_worker_that_comes_again_takes_the_place_of_the_earlier_one() -> None:
    server = Server()
    server.executor.pushes.keep_gradient_memory(1, [torch.ones(4)])
    server.executor.pushes.keep_gradient_memory(1, [torch.full((4,), 2.0)])
    assert server.push(1, by_order=False) == [-2, -2, -2, -2]


def test_a_push_into_memory_that_was_never_shown_is_refused_and_not_taken_for_nothing() -> None:
    server = Server()
    with pytest.raises(WireError, match="worker 1 has not shown where its gradients lie"):
        server.executor.hold_shared(1, PushRequest(1, 0, shared=True))
    with pytest.raises(WireError, match="worker 1 has not shown where its gradients lie"):
        server.executor.hold(1, Message(PushRequest(1, 0, shared=True)))


def test_a_turn_without_a_gradient_needs_no_memory() -> None:
    server = Server()
    assert server.executor.hold(1, Message(PushRequest(1, 0, "pull", shared=True)))
    server.executor.carry_out([Answer(1, 1, "pulled", 0)])
    assert server.answers == [(PushAnswer(1, "pulled", 0), [[0.0] * 4])]


def test_a_gradient_that_waits_for_others_is_as_it_was_when_it_was_answered() -> None:
    """Its worker goes on, and writes its next gradient to the same memory."""
    server, slot = Server(), torch.ones(4)
    server.executor.pushes.keep_gradient_memory(1, [slot])
    for seq in (1, 2):
        server.executor.hold_shared(1, PushRequest(seq, 0, shared=True))
        server.executor.carry_out([Answer(1, seq, "held", 0)])
        slot.fill_(7.0)
    server.executor.carry_out([Apply(1, (Part(1, 1), Part(1, 2)))])
    assert server.executor.shard.values()[0].tolist() == [-4.0] * 4  # the mean of 1 and 7


# --- sent twice -------------------------------------------------------------------------------------------
def pushed(server: Server, seq: int, gradient: float = 1.0) -> bool:
    """A push of worker 1 over the network."""
    return server.executor.hold(1, Message(PushRequest(seq, 0), [torch.full((4,), gradient)]))


def applied(server: Server, seq: int) -> None:
    assert pushed(server, seq)
    server.executor.carry_out([Apply(seq, (Part(1, seq),)), Answer(1, seq, "applied", seq)])


def test_a_push_whose_answer_was_lost_is_answered_again_and_counts_once() -> None:
    server = Server()
    applied(server, 1)
    assert not server.executor.holds(1, 1, anew=True)  # so that the worker sends it again
    assert not pushed(server, 1)
    header, (values,) = server.answers[-1]
    assert header == PushAnswer(1, "applied", 1)
    assert values == [-1.0] * 4


def test_an_older_push_that_comes_again_hides_no_newer_one() -> None:
    server = Server()
    applied(server, 1)
    applied(server, 2)
    for seq in (1, 2, 1, 2):
        assert not pushed(server, seq)
        assert server.answers[-1][0] == PushAnswer(2, "applied", 2)
    assert len(server.answers) == 4  # nobody waits for the answer to the older one
    applied(server, 3)


def test_a_push_that_is_decided_and_not_answered_yet_is_neither_taken_again_nor_asked_for() -> None:
    server = Server()
    assert pushed(server, 1)
    server.executor.carry_out([Apply(1, (Part(1, 1),))])
    assert server.executor.holds(1, 1, anew=True)
    assert not pushed(server, 1)
    assert server.answers == []
    server.executor.carry_out([Answer(1, 1, "applied", 1)])
    assert [header for header, _ in server.answers] == [PushAnswer(1, "applied", 1)]


def test_the_wish_for_a_workers_state_is_not_lost_with_an_answer() -> None:
    server = Server()
    assert pushed(server, 1)
    server.executor.carry_out([Apply(1, (Part(1, 1),)), Answer(1, 1, "applied", 1, cut=True)])
    assert not pushed(server, 1)
    assert server.answers[-1][0] == PushAnswer(1, "applied", 1, cut=True)


@pytest.mark.parametrize("outcome", ["applied", "dropped"])
def test_nothing_is_kept_of_a_push_after_its_decision(outcome: str) -> None:
    server, gradient = Server(), torch.ones(4)
    assert server.executor.hold(1, Message(PushRequest(1, 0), [gradient]))
    seen = weakref.ref(gradient)
    del gradient
    if outcome == "applied":
        server.executor.carry_out([Apply(1, (Part(1, 1),)), Answer(1, 1, "applied", 1)])
    else:
        server.executor.carry_out([Forget(1, 1), Answer(1, 1, "dropped", 0)])
    gc.collect()
    assert seen() is None
    assert not server.executor.pushes._held  # nor a copy


# --- sent ahead -------------------------------------------------------------------------------------------
def bucket(server: Server, seq: int) -> None:
    server.executor.pushes.keep_ahead(1, Message(BlockAhead(seq, 0), [torch.ones(4)]))


def test_a_block_that_was_sent_ahead_is_found_by_its_push() -> None:
    server = Server()
    bucket(server, 1)
    assert server.executor.hold(1, Message(PushRequest(1, 0, ahead=(0,))))
    server.executor.carry_out([Apply(1, (Part(1, 1),)), Answer(1, 1, "applied", 1)])
    assert server.answers[-1][1] == [[-1.0] * 4]


def test_a_block_that_was_sent_ahead_of_another_push_does_not_count() -> None:
    """The worker is asked for all of the push: nothing of it is held."""
    server = Server()
    bucket(server, 1)
    assert not server.executor.hold(1, Message(PushRequest(2, 0, ahead=(0,))))
    assert not server.executor.holds(1, 2, anew=False)
    applied(server, 2)


def test_a_block_of_an_earlier_push_does_not_stand_in_for_one_that_was_lost() -> None:
    server = Server(blocks=2)
    for seq, block in ((1, 0), (2, 1)):
        server.executor.pushes.keep_ahead(1, Message(BlockAhead(seq, block), [torch.ones(2)]))
    assert not server.executor.hold(1, Message(PushRequest(2, 0, ahead=(0, 1))))
