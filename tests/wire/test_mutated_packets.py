"""Packets that are nearly ours: whatever bytes come, a listener throws them away and goes on."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator

import pytest
import torch
import zmq

from argosy.cluster.spec import Address
from argosy.errors import WireError
from argosy.protocol.asking import WaitingRequest
from argosy.wire.channel import Arrival, Delivery, Departure, Garbage
from argosy.wire.message import decode, encode
from argosy.wire.unix_channel import UnixChannel, UnixListener
from argosy.wire.zmq_channel import ZmqListener
from examples import EXAMPLES
from mutations import mutate, mutations

TENSORS = [torch.arange(6.0).view(2, 3), torch.tensor([True, False]), torch.empty(0)]
_MOST = 64 * 1024


@pytest.fixture
def unix() -> Iterator[UnixListener]:
    made = UnixListener()
    yield made
    made.close()


def arrival(listener: UnixListener | ZmqListener) -> Arrival:
    got = listener.receive(20.0)
    assert got is not None, "nothing came"
    return got


def unix_packets() -> list[tuple[bytes, list[int]]]:
    """What a channel really sends, with the descriptors that come along."""
    name = f"argosy-test-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(f"\0{name}")
        server.listen()
        found = []
        for tensors in ([], TENSORS):
            channel = UnixChannel(name)
            end, _ = server.accept()
            for header in EXAMPLES:
                channel.send(header, tensors)
                data, descriptors, _, _ = socket.recv_fds(end, _MOST, 4)
                found.append((data, list(descriptors)))
            channel.close()
            end.close()
    return found


def connected(listener: UnixListener) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(f"\0{listener.name}")
    return sock


@pytest.mark.parametrize(
    "packet",
    [
        bytes.fromhex("92a5856162636401"),  # a word that is no UTF-8 in place of another header's name
        bytes.fromhex("92a55f4c6f6e67ff"),
        b"\x92" * 5000,
    ],
    ids=["no text", "a negative size", "deep"],
)
def test_bytes_that_no_decoder_expects(unix: UnixListener, packet: bytes) -> None:
    with connected(unix) as sock:
        sock.send(packet)
        assert isinstance(arrival(unix), Garbage)
    assert isinstance(arrival(unix), Departure)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_packets_on_a_unix_socket(unix: UnixListener, seed: int) -> None:
    """With the memory that comes with the real ones, or without it, or with that of another."""
    packets = unix_packets()
    chance = random.Random(seed)
    plain = [data for data, _ in packets]
    everything = [descriptor for _, descriptors in packets for descriptor in descriptors]
    kinds: set[type[Arrival]] = set()
    sock = connected(unix)
    try:
        for _ in range(1000):
            data, descriptors = chance.choice(packets)
            data = mutate(data, plain, chance)[:_MOST]
            files = chance.choice([descriptors, [], [chance.choice(everything)]])
            if not data and not files:
                continue  # to the other end this is the end
            socket.send_fds(sock, [data], files)
            got = arrival(unix)
            kinds.add(type(got))
            if isinstance(got, Departure):  # it may hang up on one that it cannot read from
                sock.close()
                sock = connected(unix)
    finally:
        sock.close()
        for descriptor in everything:
            os.close(descriptor)
    assert {Delivery, Garbage} <= kinds
    channel = UnixChannel(unix.name)
    channel.send(WaitingRequest(7), TENSORS)
    while not isinstance(got := arrival(unix), Delivery):
        assert isinstance(got, Departure)
    assert got.message.header == WaitingRequest(7)
    assert all(map(torch.equal, got.message.tensors, TENSORS))
    del got
    channel.close()


@pytest.mark.parametrize("seed", range(4))
def test_mutated_messages_decode_or_are_refused(seed: int) -> None:
    heads = [bytes(encode(header, tensors)[0]) for header in EXAMPLES for tensors in ([], TENSORS)]
    frames = [bytearray(bytes(part)) for part in encode(WaitingRequest(), TENSORS)[1:]]
    chance = random.Random(seed)
    outcomes = set()
    for head in mutations(heads, 4000, seed):
        try:
            decode([bytearray(head), *chance.choice([[], frames])])
            outcomes.add("a message")
        except WireError:
            outcomes.add("refused")
    assert outcomes == {"a message", "refused"}


def test_mutated_packets_over_the_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        listener = ZmqListener(Address("127.0.0.1", bound.getsockname()[1]), listen_fd=os.dup(bound.fileno()))
    heads = [bytes(encode(header, tensors)[0]) for header in EXAMPLES for tensors in ([], TENSORS)]
    address = listener._router.getsockopt_string(zmq.LAST_ENDPOINT)
    try:
        with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
            sock.setsockopt(zmq.LINGER, 0)
            sock.connect(address)
            for head in mutations(heads, 1000, 0):
                sock.send_multipart([head])
                assert isinstance(arrival(listener), Delivery | Garbage)
            sock.send_multipart([bytes(part) for part in encode(WaitingRequest(7))])
            got = arrival(listener)
            assert isinstance(got, Delivery)
            assert got.message.header == WaitingRequest(7)
    finally:
        listener.close()
