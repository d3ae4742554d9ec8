"""Every transport, ready to be tested. A new one is a class here, and a line in TRANSPORTS."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod

import zmq

from argosy.cluster.spec import Address
from argosy.wire.channel import Channel, Listener
from argosy.wire.inbox import Inbox
from argosy.wire.local_channel import LocalListener
from argosy.wire.unix_channel import UnixChannel, UnixListener
from argosy.wire.zmq_channel import ZmqChannel, ZmqListener


def warm_up() -> None:
    """Start pyzmq's thread for memory that was sent: one a process, and no test is to be blamed for it."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("inproc://warm-up")
        other.connect("inproc://warm-up")
        one.send(bytearray(2**20), copy=False)
        other.recv()


warm_up()


def bound_socket(listening: bool = True) -> tuple[socket.socket, Address]:
    """A socket on a free port of loopback: nobody else can get that port while it is open."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    if listening:
        sock.listen(128)
    return sock, Address("127.0.0.1", sock.getsockname()[1])


class Transport(ABC):
    """A listener, ways to connect to it, and a way to send what is no message."""

    closed = False
    ends_for_good = True  # a connection that has ended is not made anew

    @property
    @abstractmethod
    def listener(self) -> Listener:
        """The server's end."""

    @abstractmethod
    def connect(self) -> Channel:
        """One more client."""

    @abstractmethod
    def throw(self, channel: Channel, garbage: bytes) -> None:
        """Send bytes as they are, in place of a message."""

    def close(self) -> None:
        """Close the listener, if a test has not done so."""
        if not self.closed:
            self.closed = True
            self.listener.close()


class Local(Transport):
    """In this process."""

    def __init__(self) -> None:
        self._inbox = LocalListener()
        self._peers: dict[int, bytes] = {}

    @property
    def listener(self) -> Listener:
        return self._inbox

    def connect(self) -> Channel:
        peer = b"peer-%d" % len(self._peers)
        channel = self._inbox.connect(peer)
        self._peers[id(channel)] = peer
        return channel

    def throw(self, channel: Channel, garbage: bytes) -> None:
        self._inbox.deliver(self._peers[id(channel)], [garbage])


class Zmq(Transport):
    """Over TCP."""

    ends_for_good = False

    def __init__(self) -> None:
        sock, self.address = bound_socket()
        self.network = ZmqListener(self.address, listen_fd=sock.detach())
        self._count = 0

    @property
    def listener(self) -> Listener:
        return self.network

    def connect(self) -> Channel:
        self._count += 1
        return ZmqChannel(self.address, b"peer-%d" % self._count)

    def throw(self, channel: Channel, garbage: bytes) -> None:
        assert isinstance(channel, ZmqChannel)
        channel._dealer.send(garbage)


class Unix(Transport):
    """Through shared memory."""

    def __init__(self) -> None:
        self.local = UnixListener()

    @property
    def listener(self) -> Listener:
        return self.local

    def connect(self) -> Channel:
        return UnixChannel(self.local.name)

    def throw(self, channel: Channel, garbage: bytes) -> None:
        assert isinstance(channel, UnixChannel)
        channel._connection._sock.send(garbage)


class InboxOverNetwork(Zmq):
    """A server's inbox of both lanes, from another host."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox(self.network, UnixListener())

    @property
    def listener(self) -> Listener:
        return self.inbox


class InboxOverLane(Unix):
    """A server's inbox of both lanes, from its own host."""

    def __init__(self) -> None:
        super().__init__()
        sock, address = bound_socket()
        self.inbox = Inbox(ZmqListener(address, listen_fd=sock.detach()), self.local)

    @property
    def listener(self) -> Listener:
        return self.inbox


TRANSPORTS: list[type[Transport]] = [Local, Zmq, Unix, InboxOverNetwork, InboxOverLane]
