"""The short way between processes of one machine: real sockets, real memory, both ends in this process."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct

import pytest
import torch
from sender_and_receiver import ends, next_of, wait

from argosy.cluster.spec import Address
from argosy.errors import WireError
from argosy.protocol.remote_work import Work
from argosy.remote.transport.same_host import (
    TO_TASK,
    SameHostListener,
    SameHostReceiver,
    SameHostSender,
    connect,
)

CLIENT = "c" * 32


def frame(size: int, first: int = 0) -> torch.Tensor:
    return (torch.arange(size) + first).to(torch.uint8)


def open_memory() -> int:
    """How many pieces of shared memory this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum("memfd:argosy" in line for line in maps)


def test_words_and_small_tensors_travel_in_the_socket() -> None:
    with ends() as (sender, receiver):
        before = open_memory()
        sender.send(Work([1, "two"]), [frame(5), frame(0), frame(300)])
        message = next_of(receiver)
        assert message.header == Work([1, "two"])
        sent = [frame(5), frame(0), frame(300)]
        assert all(torch.equal(a, b) for a, b in zip(message.tensors, sent, strict=True))
        assert open_memory() == before


def test_what_was_read_is_let_go_of_while_another_thread_still_looks_at_it() -> None:
    with ends() as (sender, receiver):
        sender.send(Work([1]), [frame(300)])
        sender.send(Work([2]), [frame(300)])
        select.select([receiver], [], [], 5)
        messages = receiver.take()
        assert next(messages).header == Work([1])
        with memoryview(receiver._data):
            assert next(messages).header == Work([2])
        sender.send(Work([3]), [])
        assert next_of(receiver).header == Work([3])


def test_large_tensors_are_lent_and_their_buffer_is_used_again_when_they_are_given_back() -> None:
    with ends() as (sender, receiver):
        before = open_memory()
        for turn in range(5):
            sent = [frame(100_000, turn), frame(70, turn)]
            sender.send(Work([turn]), sent)
            message = next_of(receiver)
            assert all(torch.equal(a, b) for a, b in zip(message.tensors, sent, strict=True))
            assert all(tensor.data_ptr() % 64 == 0 for tensor in message.tensors)
            del message
        assert open_memory() == before + 2  # one buffer, seen from both ends


def test_what_is_kept_is_not_written_over() -> None:
    with ends() as (sender, receiver):
        kept = []
        for turn in range(3):
            sender.send(Work([]), [frame(50_000, turn)])
            kept.append(next_of(receiver).tensors[0])
        assert all(torch.equal(tensor, frame(50_000, turn)) for turn, tensor in enumerate(kept))


def test_a_sender_with_much_under_way_waits_until_something_is_given_back() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    near.setblocking(False)
    far.setblocking(False)
    waited: list[bool] = []

    def give_back(_: socket.socket, to_send: bool) -> None:
        waited.append(to_send)
        next_of(receiver)  # and nobody keeps it

    sender, receiver = SameHostSender(near, give_back, most=150_000), SameHostReceiver(far)
    sender.send(Work([]), [frame(100_000)])
    sender.send(Work([]), [frame(100_000)])
    assert not waited
    sender.send(Work([]), [frame(100_000)])
    assert waited == [False]
    sender.close()
    receiver.close()


def test_a_message_in_pieces_is_whole_in_the_end() -> None:
    near, middle = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    feeder, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    far.setblocking(False)
    sender, receiver = SameHostSender(near, wait), SameHostReceiver(far)
    sender.send(Work(["words"]), [frame(9)])
    data, taken = middle.recv(65536), []
    for position in range(len(data)):
        feeder.send(data[position : position + 1])
        taken += list(receiver.take())
        assert bool(taken) == (position == len(data) - 1)
    assert taken[0].header == Work(["words"])
    for each in (sender, receiver, middle, feeder):
        each.close()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack("<IiB", 0, -1, 0), "at most"),
        (struct.pack("<IiBQ", 1, -1, 0, 2**40), "larger than the limit"),
    ],
)
def test_what_may_not_be_believed_is_not(data: bytes, why: str) -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    far.setblocking(False)
    receiver = SameHostReceiver(far)
    near.send(data)
    with pytest.raises(WireError, match=why):
        list(receiver.take())
    near.close()
    receiver.close()


def test_memory_that_is_not_sealed_or_not_there_is_refused() -> None:
    with contextlib.ExitStack() as stack:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        stack.callback(near.close)
        far.setblocking(False)
        receiver = SameHostReceiver(far)
        stack.callback(receiver.close)
        plain = os.memfd_create("plain")
        stack.callback(os.close, plain)
        os.ftruncate(plain, 4096)
        told = struct.pack("<IiB", 1, 0, 1) + _words()
        socket.send_fds(near, [told], [plain])
        with pytest.raises(WireError, match="sealed"):
            list(receiver.take())
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    far.setblocking(False)
    receiver = SameHostReceiver(far)
    near.send(told)
    with pytest.raises(WireError, match="expected a descriptor of shared memory"):
        list(receiver.take())
    near.close()
    receiver.close()


def test_a_buffer_that_is_not_known_is_refused() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    far.setblocking(False)
    receiver = SameHostReceiver(far)
    near.send(struct.pack("<IiB", 1, 3, 0) + _words())
    with pytest.raises(WireError, match="known buffer, got 3"):
        list(receiver.take())
    near.close()
    receiver.close()


def _words() -> bytes:
    """A header with the size before it, as a sender sends it."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sender = SameHostSender(near, wait)
    sender.send(Work([]), [])
    data = far.recv(65536)
    sender.close()
    far.close()
    return data[struct.calcsize("<IiB") :]


def test_an_end_that_has_gone_is_passed_over_by_the_sender_and_told_to_the_receiver() -> None:
    with ends() as (sender, receiver):
        receiver.close()
        sender.send(Work([]), [frame(10)])
        sender.send(Work([]), [frame(100_000)])
    with ends() as (sender, receiver):
        sender.close()
        with pytest.raises(EOFError):
            list(receiver.take())


def test_a_listener_is_found_by_its_port_and_only_on_this_host() -> None:
    with socket.socket() as bound:  # a port that nobody else has
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        listener = SameHostListener(port)
        sock = connect(Address("127.0.0.1", port), TO_TASK, CLIENT)
        accepted = listener.accept()
        assert accepted is not None
        way, client, other = accepted
        assert (way, client) == (TO_TASK, CLIENT)
        with pytest.raises(OSError, match="in use"):
            SameHostListener(port)
        with pytest.raises(OSError, match="not on this host"):
            connect(Address("10.0.0.1", port), TO_TASK, CLIENT)
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            connect(Address("127.0.0.1", port), TO_TASK, CLIENT)
        sock.close()
        other.close()
