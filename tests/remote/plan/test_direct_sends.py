"""Tensors that are made in the memory that they are sent in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from clusters import cluster_here
from sender_and_receiver import ends, next_of

import argosy
from argosy.protocol.remote_work import Work
from argosy.remote.operations.instructions import SEND, TENSOR, Result, Template
from argosy.remote.operations.kernel import Kernel
from argosy.remote.plan.dependencies import Dependencies
from argosy.remote.plan.direct_sends import find_direct_sends
from argosy.remote.transport.send_buffers import SendBuffer

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"
LARGE, SMALL, FLIP, HALVE = range(4)


def operation(number: int, name: str, args: list[Any], result: Result) -> Kernel:
    inputs = sum(each == [TENSOR] for each in args)
    template = Template(number, name, args, {}, inputs, 0, "cpu:0", (0,), (result,))
    return Kernel(template, torch.device("cpu"))


TEMPLATES = {
    LARGE: operation(LARGE, "aten::mm", [[TENSOR]] * 2, Result((256, 256), (256, 1), "float32", -1)),
    SMALL: operation(SMALL, "aten::mm", [[TENSOR]] * 2, Result((16, 16), (16, 1), "float32", -1)),
    FLIP: operation(FLIP, "aten::t", [[TENSOR]], Result((256, 256), (1, 256), "float32", 0)),
    HALVE: operation(HALVE, "aten::mul.Scalar", [[TENSOR], 0.5], Result((256, 256), (256, 1), "float32", -1)),
}
MADE = [LARGE, -1, 10, 1, 2]
FLIPPED = [FLIP, -1, 11, 10]


def send(value: int) -> list[object]:
    return [SEND, value, PS, 90 + value, -1]


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([*MADE, *send(10)], [0]),
        ([*MADE, *FLIPPED, *send(11)], [0]),
        ([*MADE], []),
        ([*MADE, *send(10), *FLIPPED, *send(11)], []),  # to two tasks, or twice to one
        ([*MADE, *send(10), HALVE, -1, 12, 10], []),
        ([SMALL, -1, 10, 1, 2, *send(10)], []),
        ([HALVE, -1, 10, 1, *send(10)], []),  # it has no form that writes elsewhere, under this name
    ],
    ids=["sent", "a view of it", "kept", "twice", "used here too", "small", "no such form"],
)
def test_what_is_sent_and_of_no_other_use_is_computed_in_a_send_buffer(
    records: list[object], found: list[int]
) -> None:
    found_sends = find_direct_sends(Dependencies(records, TEMPLATES, (), {}))
    assert list(found_sends) == found
    for direct in found_sends.values():
        assert (direct.shape, direct.nbytes, direct.send.task) == ((256, 256), 256 * 256 * 4, PS)


def test_a_buffer_waits_for_the_receiver_and_for_its_own_tensor() -> None:
    with ends() as (sender, receiver):
        buffer = sender.reserve(4 * 10_000)
        assert buffer is not None
        tensor = buffer.tensor(torch.float32, (100, 100), (1, 100)).fill_(3)
        sender.send_kept(Work([1]), buffer, 4 * 10_000)
        received = next_of(receiver).tensors[0].view(torch.float32)
        assert received.tolist() == [3.0] * 10_000
        second = sender.reserve(4 * 10_000)
        assert second is not buffer
        del received
        third = sender.reserve(4 * 10_000)
        assert third not in (buffer, second)
        view = tensor[1:2]
        del tensor
        assert buffer.held
        del view
        assert sender.reserve(4 * 10_000) is buffer


def test_what_is_taken_back_is_changed_here_and_not_there() -> None:
    with ends() as (sender, receiver):
        buffer = sender.reserve(4 * 10_000)
        assert buffer is not None
        tensor = buffer.tensor(torch.float32, (10_000,), (1,)).fill_(3)
        view = tensor[5_000:]
        sender.send_kept(Work([1]), buffer, 4 * 10_000)
        received = next_of(receiver).tensors[0].view(torch.float32)
        sender.take_back(buffer)
        assert tensor.tolist() == [3.0] * 10_000
        tensor.fill_(4)
        assert view.tolist() == [4.0] * 5_000
        assert received.tolist() == [3.0] * 10_000
        assert sender.reserve(4 * 10_000) is None  # whoever writes to such tensors has memory of its own
        sender.send(Work([2]), [torch.ones(40_000, dtype=torch.uint8)])
        assert next_of(receiver).tensors[0].sum() == 40_000
        assert tensor.tolist() == [4.0] * 10_000


def test_what_is_given_up_is_used_for_the_next() -> None:
    with ends() as (sender, _):
        buffer = sender.reserve(20_000)
        assert buffer is not None
        sender.cancel(buffer)
        assert sender.reserve(20_000) is buffer


@pytest.fixture
def computed_in_buffers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The buffers in which tensors were made."""
    made: list[int] = []
    ordinary = SendBuffer.tensor

    def tensor(buffer: SendBuffer, *words: Any) -> torch.Tensor:
        made.append(buffer.number)
        return ordinary(buffer, *words)

    monkeypatch.setattr(SendBuffer, "tensor", tensor)
    return made


def train(wrap: Callable[[Any], Any], after: Callable[[torch.Tensor], Any]) -> list[torch.Tensor]:
    """Some steps of a layer whose gradient is large; what `after` makes of it each time, and the end."""
    torch.manual_seed(3)
    layer = argosy.place(torch.nn.Linear(300, 300), PS)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)

    def step(images: torch.Tensor) -> torch.Tensor:
        with argosy.device(WORKER):
            optimizer.zero_grad()
            loss: torch.Tensor = layer(images).square().mean()
            loss.backward()
        with argosy.device(PS):
            optimizer.step()
        return loss.detach()

    step = wrap(step)
    generator = torch.Generator().manual_seed(1)
    seen = []
    for _ in range(12):
        seen.append(step(torch.randn(8, 300, generator=generator)))
        assert layer.weight.grad is not None
        seen.append(after(layer.weight.grad))
    return argosy.fetch([*seen, *layer.parameters()])


@pytest.mark.parametrize(
    "after",
    [
        lambda gradient: gradient.sum(),
        lambda gradient: gradient.clone(),
        lambda gradient: gradient.mul_(0.5).sum(),
        lambda gradient: gradient.t()[1:].zero_().sum() + gradient.sum(),
    ],
    ids=["read", "cloned", "written to", "written to by a view"],
)
def test_the_same_bits_whatever_is_done_with_a_gradient(after: Any, computed_in_buffers: list[int]) -> None:
    with cluster_here(ps=1, worker=1) as target, argosy.connect(target, wait=20):
        expected = train(lambda step: step, after)
        assert not computed_in_buffers
        found = train(argosy.capture, after)
    assert computed_in_buffers
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
