"""A push that lies in memory which the worker has shown to the server: found there, whole or in part."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from argosy.errors import WireError
from argosy.modes import Async
from argosy.store.carrier import Carrier
from argosy.store.layout import Layout, ParameterSpec, extend
from argosy.store.optimizers import describe
from argosy.store.placement import Greedy, place
from argosy.store.saving import Saving
from argosy.update.decisions import Answer, Apply, Part
from argosy.wire.message import Message
from argosy.wire.protocol import Header, PushRequest, Register, Verdict


class Server:
    """A carrier with two parameters of two zeros, and what it has answered."""

    def __init__(self) -> None:
        self.answers: list[tuple[Header, list[list[float]]]] = []
        self.carrier = Carrier(0, self._reply, lambda *_: None, lambda _: True, Saving(0, 1), workers=2)
        specs = [ParameterSpec(name, (2,), "float32", 0) for name in ("a", "b")]
        layout = extend(Layout(), specs, place(Greedy(), specs, [0]))
        plain = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=1.0)
        self.carrier.register(Message(Register(layout, describe(plain), Async()), [torch.zeros(4)]))

    def _reply(self, worker: int, header: Header, tensors: Sequence[torch.Tensor]) -> None:
        self.answers.append((header, [tensor.tolist() for tensor in tensors]))

    def push(self, seq: int, *, by_order: bool, absent: tuple[int, ...] = ()) -> list[float]:
        """A push of worker 1 in its slots, applied; the values that it is answered with.

        `by_order`: the coordinator tells of it, and no message comes from the worker.
        """
        request = PushRequest(seq, seq - 1, absent=absent, shared=True)
        if by_order:
            self.carrier.hold_shared(1, request)
        else:
            assert self.carrier.hold(1, Message(request))
        self.carrier.carry_out([Apply(seq, (Part(1, seq),)), Answer(1, seq, "applied", seq)])
        header, (values,) = self.answers[-1]
        assert header == Verdict(seq, "applied", seq)
        return values


@pytest.mark.parametrize("by_order", [True, False])
def test_what_lies_in_the_slots_is_applied_as_it_is_then(by_order: bool) -> None:
    server, slot = Server(), torch.tensor([1.0, 2.0, 3.0, 4.0])
    server.carrier.keep_slots(1, [slot])
    assert server.push(1, by_order=by_order) == [-1, -2, -3, -4]
    slot.fill_(1.0)
    assert server.push(2, by_order=by_order) == [-2, -3, -4, -5]


@pytest.mark.parametrize("by_order", [True, False])
def test_what_a_push_says_is_absent_is_absent_from_that_push_alone(by_order: bool) -> None:
    server = Server()
    server.carrier.keep_slots(1, [torch.ones(4)])
    assert server.push(1, by_order=by_order, absent=(0,)) == [0, 0, -1, -1]
    assert server.push(2, by_order=by_order) == [-1, -1, -2, -2]


def test_the_slots_of_a_worker_that_comes_again_take_the_place_of_the_earlier_ones() -> None:
    server = Server()
    server.carrier.keep_slots(1, [torch.ones(4)])
    server.carrier.keep_slots(1, [torch.full((4,), 2.0)])
    assert server.push(1, by_order=False) == [-2, -2, -2, -2]


def test_a_push_into_memory_that_was_never_shown_is_refused_and_not_taken_for_nothing() -> None:
    server = Server()
    with pytest.raises(WireError, match="worker 1 has not shown where its gradients lie"):
        server.carrier.hold_shared(1, PushRequest(1, 0, shared=True))
    with pytest.raises(WireError, match="worker 1 has not shown where its gradients lie"):
        server.carrier.hold(1, Message(PushRequest(1, 0, shared=True)))


def test_a_turn_without_a_gradient_needs_no_slots() -> None:
    server = Server()
    assert server.carrier.hold(1, Message(PushRequest(1, 0, "pull", shared=True)))
    server.carrier.carry_out([Answer(1, 1, "pulled", 0)])
    assert server.answers == [(Verdict(1, "pulled", 0), [[0.0] * 4])]
