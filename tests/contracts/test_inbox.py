"""A server's inbox while clients come over both lanes: none is taken for another, or kept waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from transports import bound_socket

from argosy.protocol.asking import WaitingReport, WaitingRequest
from argosy.protocol.training import PushAnswer
from argosy.wire.channel import Arrival, Channel, Delivery, Departure
from argosy.wire.inbox import Inbox
from argosy.wire.unix_channel import UnixChannel, UnixListener
from argosy.wire.zmq_channel import ZmqChannel, ZmqListener

PATIENCE = 20.0


class Both:
    """An inbox, and a client on each lane."""

    def __init__(self) -> None:
        sock, self.address = bound_socket()
        self.inbox = Inbox(ZmqListener(self.address, listen_fd=sock.detach()), UnixListener())
        self.far = ZmqChannel(self.address, b"far")
        self.near = UnixChannel(self.inbox.lane)

    def arrival(self, patience: float = PATIENCE) -> Arrival:
        got = self.inbox.receive(patience)
        assert got is not None, "nothing came"
        return got

    def delivery(self, patience: float = PATIENCE) -> Delivery:
        got = self.arrival(patience)
        assert isinstance(got, Delivery), got
        return got

    def close(self) -> None:
        for name in ("far", "near", "inbox"):  # nothing keeps their memory after that
            self.__dict__.pop(name).close()


@pytest.fixture
def both() -> Iterator[Both]:
    made = Both()
    yield made
    made.close()


def introduced(both: Both, channel: Channel) -> bytes:
    channel.send(WaitingRequest(0))
    return both.delivery().peer


def answered(both: Both, channel: Channel, seq: int, value: float) -> None:
    """A message, its answer, and that the answer is this one."""
    channel.send(WaitingRequest(seq))
    got = both.delivery()
    assert got.message.header == WaitingRequest(seq)
    both.inbox.send(got.peer, PushAnswer(seq, "applied", 1), [torch.full((100,), value)])
    back = channel.receive(PATIENCE)
    assert back is not None
    assert back.header == PushAnswer(seq, "applied", 1)
    assert back.tensors[0].eq(value).all()


def test_clients_of_both_lanes_take_turns(both: Both) -> None:
    for turn in range(50):
        answered(both, both.far, turn, 1.0)
        answered(both, both.near, turn, 2.0)
        if turn % 3 == 0:
            answered(both, both.near, turn, 3.0)


def test_what_came_over_the_network_during_an_answer_is_not_overlooked(both: Both) -> None:
    """To send takes note of what has come since, and nothing tells of it a second time."""
    far = introduced(both, both.far)
    assert both.inbox.receive(0.05) is None
    for turn in range(10):
        both.far.send(WaitingRequest(turn))
        time.sleep(0.02)  # until it lies in the server's memory, of which nothing can be heard
        both.inbox.send(far, WaitingReport((), 0.0))
        assert both.delivery(5.0).message.header == WaitingRequest(turn)
        assert both.inbox.receive(0.0) is None


def test_all_of_what_waits_on_one_lane_comes_while_the_other_is_busy(both: Both) -> None:
    for turn in range(30):
        both.far.send(WaitingRequest(turn))
        both.near.send(WaitingRequest(turn))
    got = [both.delivery() for _ in range(60)]
    far, near = introduced(both, both.far), introduced(both, both.near)
    for peer in (far, near):
        mine = [each.message.header for each in got if each.peer == peer]
        assert mine == [WaitingRequest(turn) for turn in range(30)]


def test_the_end_of_one_is_not_the_end_of_the_other(both: Both) -> None:
    far, near = introduced(both, both.far), introduced(both, both.near)
    both.near.close()
    assert both.arrival() == Departure(near, final=True)
    answered(both, both.far, 1, 1.0)
    assert not both.inbox.copies(near)
    both.near = UnixChannel(both.inbox.lane)
    again = introduced(both, both.near)
    assert again not in (near, far)
    both.far.close()
    assert both.arrival() == Departure(far)
    answered(both, both.near, 2, 2.0)


@pytest.mark.parametrize("name", [b"unix-1", b"1", b""])
def test_nobody_on_the_network_is_taken_for_a_client_of_this_host(both: Both, name: bytes) -> None:
    near = introduced(both, both.near)
    stranger = ZmqChannel(both.address, name or near[:-1] + b"9")
    assert introduced(both, stranger) != near
    answered(both, stranger, 1, 1.0)
    answered(both, both.near, 2, 2.0)
    stranger.close()
