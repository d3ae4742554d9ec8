"""Both ends of the connection between processes of one machine, in this process."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator

from argosy.protocol.header import Header
from argosy.remote.transport.same_host import SameHostReceiver, SameHostSender
from argosy.wire.message import Message


def wait(sock: socket.socket, _: bool) -> None:
    select.select([sock], [], [], 5)


@contextlib.contextmanager
def ends(most: float = 2**30) -> Iterator[tuple[SameHostSender, SameHostReceiver]]:
    """A sender's end and a receiver's."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    near.setblocking(False)
    far.setblocking(False)
    sender, receiver = SameHostSender(near, wait, most), SameHostReceiver(far)
    try:
        yield sender, receiver
    finally:
        sender.close()
        receiver.close()


def next_of(receiver: SameHostReceiver) -> Message[Header]:
    """The next message; memory that comes with one ends what is read at once, so it may take two looks."""
    for _ in range(10):
        select.select([receiver], [], [], 5)
        for message in receiver.take():
            return message
    raise AssertionError("nothing came")
