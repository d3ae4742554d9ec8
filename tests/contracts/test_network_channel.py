"""What only the network has: ports, connections that are made late or anew, and strangers."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

import pytest
from transports import bound_socket

from argosy.cluster.spec import Address
from argosy.errors import ConfigError
from argosy.protocol.asking import WaitingRequest
from argosy.protocol.training import PushAnswer
from argosy.wire.channel import Arrival, Delivery, Departure
from argosy.wire.message import Message
from argosy.wire.zmq_channel import ZmqChannel, ZmqListener, bind_address


def next_delivery(listener: ZmqListener) -> Delivery:
    deadline = time.monotonic() + 20
    got: Arrival | None = None
    while time.monotonic() < deadline and not isinstance(got, Delivery):
        got = listener.receive(1.0)
    assert isinstance(got, Delivery), "nothing came"
    return got


def test_a_channel_may_be_there_before_its_server() -> None:
    sock, address = bound_socket(listening=False)
    channel = ZmqChannel(address, b"early")
    channel.send(WaitingRequest(1))
    assert channel.receive(0.1) is None
    assert channel.lost_for() == 0, "what never was cannot be lost"
    sock.listen(1)
    listener = ZmqListener(address, listen_fd=sock.detach())
    assert next_delivery(listener) == Delivery(b"early", Message(WaitingRequest(1)))
    channel.close()
    listener.close()


def test_a_port_is_free_after_its_listener_has_closed() -> None:
    sock, address = bound_socket()
    ZmqListener(address, listen_fd=sock.detach()).close()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind((address.host, address.port))


def test_a_port_that_is_taken_is_refused_in_one_line() -> None:
    sock, address = bound_socket()
    with sock, pytest.raises(ConfigError) as caught:
        ZmqListener(address, field="/job:ps/task:0")
    assert caught.value.field == "/job:ps/task:0"
    assert str(address) in caught.value.expected
    assert "in use" in str(caught.value.got)
    assert "choose a free port" in caught.value.remedy


def test_a_host_that_does_not_resolve_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"ps: expected a host name that resolves, got no-such-host\.invalid"
    ):
        bind_address(Address("no-such-host.invalid", 1), "ps")
    assert bind_address(Address("localhost", 5), "ps") == Address("127.0.0.1", 5)
    assert bind_address(Address("::1", 5), "ps") == Address("::1", 5)


def test_a_connection_that_broke_is_made_anew() -> None:
    sock, address = bound_socket()
    kept = os.dup(sock.fileno())  # the port stays ours between the two listeners
    first = ZmqListener(address, listen_fd=sock.detach())
    channel = ZmqChannel(address, b"peer")
    channel.send(WaitingRequest(1))
    next_delivery(first)
    first.close()
    deadline = time.monotonic() + 20
    while not channel.lost_for() and time.monotonic() < deadline:
        channel.receive(0.05)
    assert channel.lost_for() > 0
    second = ZmqListener(address, listen_fd=kept)
    channel.send(WaitingRequest(2))
    got = next_delivery(second)
    assert got.message.header == WaitingRequest(2)
    assert channel.lost_for() == 0
    second.send(got.peer, PushAnswer(1, "applied", 1))
    message = channel.receive(20)
    assert message is not None
    assert message.header == PushAnswer(1, "applied", 1)
    channel.close()
    second.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(range(256)) * 200,
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f" + b"\x03" + b"NULL" + bytes(1000),
        b"\xff" + (2**30).to_bytes(8, "big") + b"\x7f" + bytes(64),
    ],
    ids=["nothing", "HTTP", "noise", "half a greeting", "a header of 1 GB"],
)
def test_strangers_on_the_port_change_nothing(garbage: bytes) -> None:
    sock, address = bound_socket()
    listener = ZmqListener(address, listen_fd=sock.detach())
    channel = ZmqChannel(address, b"peer")
    with socket.create_connection((address.host, address.port), timeout=5) as stranger:
        stranger.sendall(garbage)
        channel.send(WaitingRequest(1))
        assert next_delivery(listener) == Delivery(b"peer", Message(WaitingRequest(1)))
    channel.send(WaitingRequest(2))
    assert next_delivery(listener) == Delivery(b"peer", Message(WaitingRequest(2)))
    channel.close()
    listener.close()


def test_a_connection_with_the_descriptor_of_one_that_has_ended_is_not_taken_for_it() -> None:
    """The end of the first is read after the second one's first message, which comes before all else."""
    sock, address = bound_socket()
    listener = ZmqListener(address, listen_fd=sock.detach())
    again = 0
    turn = 0
    while again < 5 and turn < 200:
        turn += 1
        first = ZmqChannel(address, b"first-%d" % turn)
        first.send(WaitingRequest(1))
        next_delivery(listener)
        (descriptor,) = listener._by_fd
        was = link(descriptor)
        first.close()
        deadline = time.monotonic() + 20
        while link(descriptor) == was and time.monotonic() < deadline:
            time.sleep(0.001)
        second = ZmqChannel(address, b"second-%d" % turn)
        second.send(WaitingRequest(2))
        time.sleep(0.02)  # until it lies in the server's memory, most often: of that nothing can be heard
        delivery = Delivery(b"second-%d" % turn, Message(WaitingRequest(2)))
        heard = [listener.receive(20)]
        again += heard == [delivery] and list(listener._by_fd) == [descriptor]
        heard.append(listener.receive(20))
        assert delivery in heard
        assert Departure(b"first-%d" % turn) in heard
        second.close()
        assert listener.receive(20) == Departure(b"second-%d" % turn)
        assert not listener._by_fd
    listener.close()
    assert again, "no descriptor was used again in time"


def link(descriptor: int) -> str:
    """What a descriptor stands for."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""
