"""Tensors that live in the memory that they are sent in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from clusters import cluster_here
from sender_and_receiver import ends, next_of

import argosy
from argosy.protocol.remote_work import Work
from argosy.remote.task.resident_parameters import move_at_next_write, send_resident
from argosy.remote.task.scheduler import Storage
from argosy.remote.transport.same_host import SameHostSender

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"
COUNT = 50_000


def moved(sender: SameHostSender, value: float = 1.0) -> tuple[Storage, torch.Tensor]:
    """A tensor that has just been written to for the first time after it was sent."""
    storage, tensor = Storage(), torch.full((COUNT,), value)
    move_at_next_write(storage, sender, tensor)
    storage.before_writing()
    return storage, tensor


def send(storage: Storage, sender: SameHostSender, tensor: torch.Tensor) -> bool:
    return send_resident(storage, sender, Work([1]), tensor.view(torch.uint8))


def test_it_moves_with_its_numbers_and_is_then_announced() -> None:
    with ends() as (sender, receiver):
        storage, tensor = moved(sender, 3.0)
        address = tensor.data_ptr()
        assert storage.resident is not None
        assert storage.resident.buffer.region.address == address
        for value in (3.0, 4.0, 5.0):
            storage.before_writing()
            tensor.fill_(value)
            assert send(storage, sender, tensor)
            assert next_of(receiver).tensors[0].view(torch.float32).eq(value).all()
        assert tensor.data_ptr() == address
        assert not storage.resident.buffer.retired


def test_what_the_receiver_still_reads_is_not_sent_from_there_and_not_changed_there() -> None:
    with ends() as (sender, receiver):
        storage, tensor = moved(sender)
        assert send(storage, sender, tensor)
        received = next_of(receiver).tensors[0].view(torch.float32)
        assert not send(storage, sender, tensor)
        storage.before_writing()
        tensor.fill_(2.0)
        assert received.eq(1.0).all()
        del received
        assert not send(storage, sender, tensor)  # it has memory of its own again
        assert tensor.eq(2.0).all()


def test_what_was_taken_back_is_copied_for_a_while_and_moves_again() -> None:
    def copy(times: int) -> None:
        for _ in range(times):
            assert not send(storage, sender, tensor)
            move_at_next_write(storage, sender, tensor)
            storage.before_writing()

    with ends() as (sender, receiver):
        larger = sender.reserve_resident(6 * COUNT)
        assert larger is not None
        sender.cancel(larger)
        storage, tensor = moved(sender)
        for pause in (4, 16, 64):
            resident = storage.resident
            assert send(storage, sender, tensor)
            received = next_of(receiver)
            storage.before_writing()  # taken back
            tensor.add_(1)
            del received
            copy(pause - 1)
            assert storage.resident is resident
            copy(1)
            assert storage.resident is not resident
            assert storage.resident is not None
            assert storage.resident.buffer.number < 3  # numbers of those that are over are used again
        assert tensor.eq(4.0).all()
        assert send(storage, sender, tensor)
        assert next_of(receiver).tensors[0].view(torch.float32).eq(4.0).all()


def test_a_message_that_nobody_has_read_yet_says_what_it_said() -> None:
    with ends() as (sender, receiver):
        storage, tensor = moved(sender)
        assert send(storage, sender, tensor)
        storage.before_writing()
        tensor.fill_(2.0)
        assert next_of(receiver).tensors[0].view(torch.float32).eq(1.0).all()


def test_it_outlives_the_connection() -> None:
    with ends() as (sender, receiver):
        storage, tensor = moved(sender)
        assert send(storage, sender, tensor)
        receiver.close()
    storage.before_writing()
    assert tensor.add_(1).eq(2.0).all()


@pytest.mark.parametrize("what", ["a view", "a part", "small"])
def test_what_does_not_move(what: str) -> None:
    with ends() as (sender, _):
        whole = torch.ones(COUNT)
        tensor = {"a view": whole, "a part": torch.ones(2 * COUNT)[:COUNT], "small": torch.ones(10)}[what]
        view = whole.view(2, -1)
        address, storage = tensor.data_ptr(), Storage()
        move_at_next_write(storage, sender, tensor)
        storage.before_writing()
        assert storage.resident is None
        assert tensor.data_ptr() == address
        assert view.data_ptr() == whole.data_ptr()


def test_with_another_connection_it_is_copied() -> None:
    with ends() as (sender, _), ends() as (other, _):
        storage, tensor = moved(sender)
        assert not send(storage, other, tensor)
        move_at_next_write(storage, other, tensor)
        assert storage.on_write is None


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each parameter that might have been announced, whether it was."""
    heard: list[bool] = []
    ordinary = SameHostSender.send_again

    def send_again(sender: SameHostSender, *words: Any) -> bool:
        heard.append(ordinary(sender, *words))
        return heard[-1]

    monkeypatch.setattr(SameHostSender, "send_again", send_again)
    return heard


Extra = Callable[[torch.nn.Linear], Any]


def train(wrap: Callable[[Any], Any], inside: Extra, outside: Extra, view: bool) -> list[torch.Tensor]:
    """Some steps of a layer; what is done with it in a step on the worker, and after it, and the end."""
    torch.manual_seed(3)
    layer = argosy.place(torch.nn.Linear(300, 300), PS)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    kept = layer.weight.detach().t() if view else None

    def step(images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with argosy.device(WORKER):
            optimizer.zero_grad()
            loss: torch.Tensor = layer(images).square().mean()
            seen = inside(layer)
            loss.backward()
        with argosy.device(PS):
            optimizer.step()
        return loss.detach(), seen

    step = wrap(step)
    generator = torch.Generator().manual_seed(1)
    found: list[torch.Tensor] = []
    for _ in range(14):
        found += step(torch.randn(8, 300, generator=generator))
        with torch.no_grad():
            outside(layer)
    found += [*layer.parameters(), *([] if kept is None else [kept])]
    return argosy.fetch(found)


def nothing(layer: torch.nn.Linear) -> torch.Tensor:
    return torch.zeros(())


@pytest.mark.parametrize(
    ("inside", "outside", "view", "always"),
    [
        (nothing, nothing, False, True),
        (lambda layer: layer.weight.detach().t(), nothing, False, False),
        (nothing, lambda layer: layer.weight.mul_(0.5), False, None),
        (nothing, lambda layer: layer.weight[3:7].zero_(), False, None),
        (nothing, nothing, True, False),
    ],
    ids=["plain", "kept there", "written to", "in part", "a view of it"],
)
def test_the_same_bits_whatever_is_done_with_a_parameter(
    inside: Extra, outside: Extra, view: bool, always: bool | None, announced: list[bool]
) -> None:
    with cluster_here(ps=1, worker=1) as target, argosy.connect(target, wait=20):
        plain = train(lambda step: step, inside, outside, view)
        assert not announced
        found = train(argosy.capture, inside, outside, view)
    # Whoever writes in between may come before the worker has read it: then it is taken back.
    assert always is None or (len(announced) > 3 and all(announced)) is always
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, plain, strict=True))


@pytest.mark.parametrize("by_view", [False, True], ids=["in the same segment", "by a view of an earlier row"])
def test_what_a_step_sends_and_writes_to_is_what_it_was_when_it_was_sent(by_view: bool) -> None:
    with cluster_here(ps=1, worker=1) as target, argosy.connect(target, wait=20):
        count = argosy.place(torch.zeros(COUNT), PS)

        def step(x: torch.Tensor) -> torch.Tensor:
            with argosy.device(WORKER):
                late = x
                for _ in range(20):  # the worker reads what it was sent when it has done this
                    late = late @ x / 300
                before = count + late.sum() * 0
                one = x[0, 0].exp() * 0 + 1
            with argosy.device(PS):
                if by_view:
                    view = count.view(2, -1)
                    before = before + (view * 0)[0, 0]
                    view.add_(one)
                else:
                    count.add_(1)
            return before

        captured = argosy.capture(step)
        results = []
        for _ in range(20):
            results.append(captured(torch.randn(300, 300)))
            count.mul_(1)
        for turn, result in enumerate(argosy.fetch(results)):
            assert torch.equal(result, torch.full((COUNT,), float(turn)))
