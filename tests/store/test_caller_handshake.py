"""From the network to the shorter way, and back when it leads nowhere."""

from __future__ import annotations

import socket
import threading
import uuid

import pytest

from argosy.protocol.joining import Hello, Welcome
from argosy.store.caller_handshake import CallerHandshake
from argosy.wire.channel import Delivery
from argosy.wire.local_channel import LocalListener
from argosy.wire.unix_channel import UnixListener

HELLO = Hello("/job:worker/task:0", 1, 1, "life")


def welcomed(listener: LocalListener | UnixListener, lane: str) -> None:
    """Answer one hello."""
    arrival = listener.receive(5.0)
    assert isinstance(arrival, Delivery)
    assert arrival.message.header == HELLO
    listener.send(arrival.peer, Welcome(lane=lane))


def test_a_server_on_this_host_is_reached_through_shared_memory() -> None:
    network, local = LocalListener(), UnixListener()
    approach = CallerHandshake(network.connect(b"me"), HELLO, "the server", use_lane=True)
    welcomed(network, local.name)
    assert approach.advance(5.0) is None
    welcomed(local, local.name)
    assert approach.advance(5.0) is None
    assert approach.welcome == Welcome(lane=local.name)
    assert approach.channel.in_place
    approach.close()
    local.close()


def test_without_such_a_server_here_the_network_stays(capsys: pytest.CaptureFixture[str]) -> None:
    network = LocalListener()
    approach = CallerHandshake(network.connect(b"me"), HELLO, "the server", use_lane=True)
    welcomed(network, f"argosy-{uuid.uuid4().hex}")
    approach.advance(5.0)
    assert approach.welcome is not None
    assert not approach.channel.in_place
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "reaches the server over the network: no shared memory (connection refused)" in said


def test_a_server_that_was_started_again_has_another_shorter_way(capsys: pytest.CaptureFixture[str]) -> None:
    network, first, second = LocalListener(), UnixListener(), UnixListener()
    approach = CallerHandshake(network.connect(b"me"), HELLO, "the server", use_lane=True)
    welcomed(network, first.name)
    approach.advance(5.0)
    first.close()
    approach.advance(5.0)
    for listener in (network, second):
        welcomed(listener, second.name)
        approach.advance(5.0)
    assert approach.welcome == Welcome(lane=second.name)
    assert approach.channel.in_place
    assert capsys.readouterr().err == ""
    approach.close()
    second.close()


def test_a_server_that_hangs_up_is_reached_over_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    """As one does that belongs to another user."""
    network, name = LocalListener(), f"argosy-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as refusing:
        refusing.bind(f"\0{name}")
        refusing.listen()
        hang_up = threading.Thread(target=lambda: refusing.accept()[0].close())
        hang_up.start()
        approach = CallerHandshake(network.connect(b"me"), HELLO, "the server", use_lane=True)
        welcomed(network, name)
        approach.advance(5.0)
        hang_up.join()
        approach.advance(5.0)
    welcomed(network, name)
    approach.advance(5.0)
    assert approach.welcome is not None
    assert not approach.channel.in_place
    assert "no shared memory (the server hung up)" in capsys.readouterr().err
