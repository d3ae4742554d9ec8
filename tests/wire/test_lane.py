"""The lane of one host: whom it lets in, which memory it looks at, and that nobody can hold a server up."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time

import pytest
import torch

from argosy.errors import WireError
from argosy.protocol.asking import WaitingReport, WaitingRequest
from argosy.protocol.frames import MAX_HEADER_BYTES
from argosy.shared_memory import passing
from argosy.shared_memory.region import Region
from argosy.wire.channel import Delivery, Departure, Garbage
from argosy.wire.unix_channel import UnixChannel, UnixListener

PATIENCE = 20.0
SEALS = {"shrink": fcntl.F_SEAL_SHRINK, "grow": fcntl.F_SEAL_GROW, "seal": fcntl.F_SEAL_SEAL}
NOBODY = 65534


# --- memory -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("missing", [*SEALS, "all"])
def test_memory_whose_size_may_still_be_changed_is_refused(missing: str) -> None:
    descriptor = os.memfd_create("other", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, 4096)
        for name, seal in SEALS.items():
            if missing not in (name, "all"):
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seal)
        with pytest.raises(WireError, match="expected a sealed memfd"):
            Region.open(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("offset", [1, 2, 4, 32, 63, 65, 4096 - 32])
def test_a_tensor_that_does_not_begin_where_tensors_do_is_refused(offset: int) -> None:
    region, descriptor = Region.create(4096)
    os.close(descriptor)
    with pytest.raises(WireError, match="does not lie in"):
        region.tensor(offset, torch.float32, (1,))


@pytest.mark.parametrize(("offset", "count"), [(0, 1025), (4096, 1), (4096 - 64, 17), (2**40, 1)])
def test_a_tensor_that_ends_beyond_the_memory_is_refused(offset: int, count: int) -> None:
    region, descriptor = Region.create(4096)
    os.close(descriptor)
    with pytest.raises(WireError, match="does not lie in"):
        region.tensor(offset, torch.float32, (count,))
    assert region.tensor(4096 - 64, torch.float32, (16,)).numel() == 16


@pytest.mark.parametrize("size", [0, MAX_HEADER_BYTES + 1, None], ids=["empty", "too large", "a folder"])
def test_a_packet_in_memory_of_its_own_that_cannot_be_one_is_refused(size: int | None) -> None:
    descriptor = os.open("/", os.O_RDONLY) if size is None else os.memfd_create("other")
    if size is not None:
        os.ftruncate(descriptor, size)
    listener = UnixListener()
    with passing.connect(listener.name, socket.SOCK_SEQPACKET) as sock:
        passing.send(sock, b"", [descriptor])
        os.close(descriptor)
        got = listener.receive(PATIENCE)
    assert isinstance(got, Garbage)
    assert "header: " in got.reason
    listener.close()


# --- who is let in ----------------------------------------------------------------------------------------
STRANGER = """
import os, socket, sys
os.setgroups([]); os.setgid({0}); os.setuid({0})
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.settimeout(20)
sock.connect("\\0" + sys.argv[1])
try:
    print("hung up" if sock.recv(100) == b"" else "answered")
except ConnectionResetError:
    print("hung up")
"""


@pytest.mark.processes
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_of_this_host_is_not_let_in() -> None:
    listener = UnixListener()
    words = [sys.executable, "-c", STRANGER.format(NOBODY), listener.name]
    stranger = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd="/")
    deadline = time.monotonic() + PATIENCE
    while stranger.poll() is None and time.monotonic() < deadline:
        assert listener.receive(0.1) is None
    stranger.kill()
    assert stranger.communicate()[0] == "hung up\n"
    listener.close()


# --- coming and going -------------------------------------------------------------------------------------
def introduced(listener: UnixListener, channel: UnixChannel) -> bytes:
    channel.send(WaitingRequest(0))
    got = listener.receive(PATIENCE)
    assert isinstance(got, Delivery), got
    return got.peer


@pytest.mark.timeout(60)
def test_a_client_that_never_reads_its_answers_is_gone_and_holds_nobody_up() -> None:
    listener = UnixListener()
    deaf, other = UnixChannel(listener.name), UnixChannel(listener.name)
    peer, good = introduced(listener, deaf), introduced(listener, other)
    departed = False
    for _ in range(200):
        for _ in range(1000):
            listener.send(peer, WaitingReport(("/job:worker/task:1",), 0.5))
        if (got := listener.receive(0.0)) is not None:
            assert got == Departure(peer, final=True)
            departed = True
            break
    assert departed, "its answers pile up"
    listener.send(good, WaitingReport((), 1.0))
    message = other.receive(PATIENCE)
    assert message is not None
    assert message.header == WaitingReport((), 1.0)
    for closing in (deaf, other, listener):
        closing.close()


def test_a_descriptor_that_is_used_again_is_another_peers() -> None:
    """The kernel gives the lowest one that is free: a new connection has that of one which has gone."""
    listener = UnixListener()
    seen: set[bytes] = set()
    staying = UnixChannel(listener.name)
    introduced(listener, staying)
    before = set(listener._connections)
    for _ in range(3):
        channel = UnixChannel(listener.name)
        peer = introduced(listener, channel)
        (descriptor,) = set(listener._connections) - before
        assert peer not in seen
        seen.add(peer)
        channel.close()
        assert listener.receive(PATIENCE) == Departure(peer, final=True)
        assert not listener.knows(peer)
        # Whoever has the descriptor now, it is none of our peers.
        taken = socket.socket()
        os.dup2(taken.fileno(), descriptor)
        try:
            assert listener.take(descriptor) is None
            listener.send(peer, WaitingReport((), 1.0))
            assert listener.receive(0.0) is None
        finally:
            os.close(descriptor)
            taken.close()
    staying.close()
    listener.close()
