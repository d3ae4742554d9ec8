"""What every transport must do, in one set of tests for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch
from transports import TRANSPORTS, Transport

from argosy.protocol.asking import WaitingReport, WaitingRequest
from argosy.protocol.frames import ITEMSIZE, FrameSpec
from argosy.protocol.header import Header
from argosy.protocol.training import PushAnswer, PushRequest
from argosy.wire.channel import Arrival, Channel, Delivery, Departure, Garbage, Peer
from argosy.wire.message import Message
from argosy.wire.tensor_bytes import spec_of, torch_dtype

PATIENCE = 20.0

Connect = Callable[[], Channel]


@pytest.fixture(params=TRANSPORTS, ids=lambda transport: transport.__name__)
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    made: Transport = request.param()
    yield made
    made.close()


@pytest.fixture
def connect(transport: Transport) -> Iterator[Connect]:
    channels: list[Channel] = []

    def connecting() -> Channel:
        channels.append(transport.connect())
        return channels[-1]

    yield connecting
    while channels:  # nothing keeps their memory after that
        channels.pop().close()


def arrival(transport: Transport) -> Arrival:
    got = transport.listener.receive(PATIENCE)
    assert got is not None, "nothing came"
    return got


def delivery(transport: Transport) -> Delivery:
    got = arrival(transport)
    assert isinstance(got, Delivery), got
    return got


def answer(channel: Channel) -> Message[Header]:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if (message := channel.receive(1.0)) is not None:
            return message
    raise AssertionError("no answer came")


def introduced(transport: Transport, channel: Channel) -> Peer:
    """The name by which the listener knows a channel."""
    channel.send(WaitingRequest(0))
    return delivery(transport).peer


# --- messages ---------------------------------------------------------------------------------------------
def test_messages_come_in_order_both_ways(transport: Transport, connect: Connect) -> None:
    channel = connect()
    for number in range(200):
        channel.send(WaitingRequest(number))
    got = [delivery(transport) for _ in range(200)]
    assert [each.message.header for each in got] == [WaitingRequest(number) for number in range(200)]
    (peer,) = {each.peer for each in got}
    for number in range(200):
        transport.listener.send(peer, PushAnswer(number, "applied", number))
    assert [answer(channel).header for _ in range(200)] == [PushAnswer(n, "applied", n) for n in range(200)]


def samples() -> list[torch.Tensor]:
    """A tensor of every dtype, an empty one, a scalar, and one of several dimensions."""
    kinds = [torch.arange(7).remainder(2).to(torch_dtype(name)) for name in ITEMSIZE]
    return [*kinds, torch.empty(0, 3), torch.tensor(2.5), torch.randn(3, 4, 5)]


def same(mine: Message[Header], tensors: list[torch.Tensor]) -> bool:
    pairs = list(zip(mine.tensors, tensors, strict=True))
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def test_a_message_comes_whole_with_all_its_tensors(transport: Transport, connect: Connect) -> None:
    channel, tensors = connect(), samples()
    channel.send(PushRequest(1, 0, buffers=("a", "b")), tensors)
    got = delivery(transport)
    assert got.message.header == PushRequest(1, 0, buffers=("a", "b"))
    assert same(got.message, tensors)
    transport.listener.send(got.peer, PushAnswer(1, "applied", 1), tensors)
    back = answer(channel)
    assert back.header == PushAnswer(1, "applied", 1)
    assert same(back, tensors)


def there_and_back(transport: Transport, channel: Channel, number: int, tensors: list[torch.Tensor]) -> None:
    """A push with these tensors, and a verdict with the same: both come whole."""
    channel.send(PushRequest(number, 0), tensors)
    got = delivery(transport)
    assert same(got.message, tensors)
    transport.listener.send(got.peer, PushAnswer(number, "applied", 1), tensors)
    assert same(answer(channel), tensors)


def test_large_tensors_come_whole(transport: Transport, connect: Connect) -> None:
    channel = connect()
    tensors = [torch.randn(2**20), torch.randn(3, 2**18), torch.randn(2**20).bfloat16()]
    for turn in range(3):
        there_and_back(transport, channel, turn, tensors)


def test_messages_grow_and_shrink(transport: Transport, connect: Connect) -> None:
    channel = connect()
    for count in (1, 100_000, 3, 500_000, 0, 2):
        there_and_back(transport, channel, count, [torch.full((count,), float(count)), torch.ones(2)])


def test_the_same_tensors_come_with_the_values_of_the_moment(transport: Transport, connect: Connect) -> None:
    channel = connect()
    tensors, larger = [torch.zeros(300_000), torch.zeros(2, 3).t()[:2].contiguous()], [torch.ones(900_000)]
    for turn in range(6):
        for tensor in tensors:
            tensor.fill_(turn)
        there_and_back(transport, channel, turn, tensors)
        if turn == 3:
            there_and_back(transport, channel, turn, larger)


def test_a_long_header_comes_whole(transport: Transport, connect: Connect) -> None:
    channel = connect()
    names = tuple(f"layer{number}.running_mean" for number in range(20_000))
    channel.send(PushRequest(1, 0, buffers=names), [torch.ones(2)])
    got = delivery(transport)
    assert got.message.header == PushRequest(1, 0, buffers=names)
    assert same(got.message, [torch.ones(2)])
    transport.listener.send(got.peer, WaitingReport(names, 1.0))
    assert answer(channel).header == WaitingReport(names, 1.0)


def test_answers_go_to_the_peer_they_are_for(transport: Transport, connect: Connect) -> None:
    channels = [connect() for _ in range(8)]
    for number, channel in enumerate(channels):
        channel.send(PushRequest(number, 0), [torch.full((5,), float(number))])
    got = [delivery(transport) for _ in channels]
    assert len({each.peer for each in got}) == 8
    for each in reversed(got):
        header = each.message.header
        assert isinstance(header, PushRequest)
        transport.listener.send(each.peer, PushAnswer(header.seq, "applied", 1), each.message.tensors)
    for number, channel in enumerate(channels):
        back = answer(channel)
        assert back.header == PushAnswer(number, "applied", 1)
        assert same(back, [torch.full((5,), float(number))])


def test_a_received_tensor_may_be_written_to(transport: Transport, connect: Connect) -> None:
    channel = connect()
    channel.send(PushRequest(1, 0), [torch.ones(3)])
    got = delivery(transport)
    got.message.tensors[0].mul_(2)
    assert got.message.tensors[0].tolist() == [2, 2, 2]


# --- memory -----------------------------------------------------------------------------------------------
def test_what_is_written_to_reserved_memory_is_sent(transport: Transport, connect: Connect) -> None:
    channel = connect()
    frames = [FrameSpec("float32", (4,)), FrameSpec("bfloat16", (2, 3))]
    reserved = channel.reserve(frames)
    assert [spec_of(tensor) for tensor in reserved] == frames
    for turn in range(3):
        for tensor in reserved:
            tensor.fill_(turn)
        sent = [*reserved, torch.full((2,), 9.0)]
        channel.send(PushRequest(turn, 0), sent)
        got = delivery(transport)
        assert same(got.message, sent)
        transport.listener.send(got.peer, PushAnswer(turn, "applied", 1))
        answer(channel)


def test_the_same_tensors_come_after_more_memory_was_reserved(transport: Transport, connect: Connect) -> None:
    """What was said, heard and laid out before is of memory that nobody looks at any more."""
    channel, tensors = connect(), [torch.zeros(1000), torch.zeros(3)]
    for turn in range(4):
        for tensor in tensors:
            tensor.fill_(turn + 1.0)
        there_and_back(transport, channel, turn, tensors)
        channel.reserve([FrameSpec("float32", (10**6 * (turn + 1),))])


def test_a_listener_that_copies_lets_go_of_the_memory(transport: Transport, connect: Connect) -> None:
    channel = connect()
    peer = introduced(transport, channel)
    value = torch.ones(50_000)
    transport.listener.send(peer, PushAnswer(1, "applied", 1), [value])
    if transport.listener.copies(peer):
        value.fill_(7)
    assert same(answer(channel), [torch.ones(50_000)])


def test_answers_come_to_the_same_memory_where_the_channel_says_so(
    transport: Transport, connect: Connect
) -> None:
    channel = connect()
    peer = introduced(transport, channel)
    first: torch.Tensor | None = None
    for turn in range(3):
        transport.listener.send(peer, PushAnswer(turn, "applied", 1), [torch.full((1000,), float(turn))])
        (value,) = answer(channel).tensors
        assert value.tolist() == [turn] * 1000
        first = value if first is None else first
        assert (first.data_ptr() == value.data_ptr()) or not channel.in_place
        assert first[0].item() == (turn if channel.in_place else 0)


# --- coming and going -------------------------------------------------------------------------------------
def test_a_departure_is_told_after_what_was_sent_before(transport: Transport, connect: Connect) -> None:
    staying, leaving = connect(), transport.connect()
    peer = introduced(transport, leaving)
    other = introduced(transport, staying)
    for number in range(20):
        leaving.send(WaitingRequest(number))
    leaving.close()
    got = [arrival(transport) for _ in range(21)]
    assert [each.message.header for each in got[:-1] if isinstance(each, Delivery)] == [
        WaitingRequest(number) for number in range(20)
    ]
    assert got[-1] == Departure(peer, transport.ends_for_good)
    transport.listener.send(other, PushAnswer(1, "applied", 1))
    assert answer(staying).header == PushAnswer(1, "applied", 1)


def test_an_answer_to_one_who_has_gone_is_passed_over(transport: Transport, connect: Connect) -> None:
    staying, leaving = connect(), transport.connect()
    peer, other = introduced(transport, leaving), introduced(transport, staying)
    leaving.close()
    assert arrival(transport) == Departure(peer, transport.ends_for_good)
    transport.listener.send(peer, PushAnswer(1, "applied", 1), [torch.ones(100_000)])
    transport.listener.send(b"never heard of", PushAnswer(1, "applied", 1))
    transport.listener.send(other, PushAnswer(2, "applied", 2))
    assert answer(staying).header == PushAnswer(2, "applied", 2)


def test_a_new_channel_may_follow_one_that_has_gone(transport: Transport, connect: Connect) -> None:
    for _ in range(3):
        leaving = transport.connect()
        peer = introduced(transport, leaving)
        leaving.close()
        assert arrival(transport) == Departure(peer, transport.ends_for_good)
    channel = connect()
    peer = introduced(transport, channel)
    transport.listener.send(peer, PushAnswer(1, "applied", 1))
    assert answer(channel).header == PushAnswer(1, "applied", 1)
    # It has the descriptor of the one before it, and is not taken for it.
    assert transport.listener.receive(0.1) is None


def test_a_channel_knows_that_its_server_has_gone(transport: Transport, connect: Connect) -> None:
    channel = connect()
    introduced(transport, channel)
    assert channel.lost_for() == 0
    transport.close()
    deadline = time.monotonic() + PATIENCE
    while not channel.lost_for() and time.monotonic() < deadline:
        assert channel.receive(0.05) is None
    first = channel.lost_for()
    assert first > 0
    time.sleep(0.02)
    assert channel.lost_for() > first


# --- time -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("timeout", [0.0, 0.15])
def test_who_waits_in_vain_waits_so_long(transport: Transport, connect: Connect, timeout: float) -> None:
    channel = connect()
    introduced(transport, channel)
    for receive in (channel.receive, transport.listener.receive):
        begun = time.monotonic()
        assert receive(timeout) is None
        assert timeout - 0.02 <= time.monotonic() - begun < timeout + 5


def test_what_is_there_is_had_without_waiting(transport: Transport, connect: Connect) -> None:
    channel = connect()
    peer = introduced(transport, channel)
    transport.listener.send(peer, PushAnswer(1, "applied", 1))
    begun = time.monotonic()
    assert answer(channel).header == PushAnswer(1, "applied", 1)
    assert time.monotonic() - begun < 5


# --- garbage ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x92" * 1000,
        b"\xdd\xff\xff\xff\xff",
        bytes(range(256)) * 50,
    ],
    ids=["a zero", "HTTP", "nesting", "gigabytes", "noise"],
)
def test_garbage_is_told_and_harms_nobody(transport: Transport, connect: Connect, garbage: bytes) -> None:
    bad, good = connect(), connect()
    peer, other = introduced(transport, bad), introduced(transport, good)
    transport.throw(bad, garbage)
    got = arrival(transport)
    assert isinstance(got, Garbage)
    assert got.peer == peer
    assert got.reason
    good.send(WaitingRequest(1))
    assert delivery(transport) == Delivery(other, Message(WaitingRequest(1)))
    bad.send(WaitingRequest(2))
    assert delivery(transport) == Delivery(peer, Message(WaitingRequest(2)))
