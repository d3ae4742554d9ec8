"""Messages over ZeroMQ: the lane between hosts, and the one that always works.

A listener is a ROUTER, a channel a DEALER. A monitor on each tells when a connection ends: on the listener's
side ZeroMQ names only the file descriptor, so the descriptor of every message is noted (SRCFD) to know whose
it was. ZeroMQ's own heartbeats run in its I/O thread, so a worker that computes for minutes is not silent.
"""

from __future__ import annotations

import ipaddress
import math
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from argosy.cluster.lease import Lease
from argosy.cluster.spec import Address, Task
from argosy.errors import ConfigError, WireError
from argosy.protocol.frames import MAX_FRAME_BYTES, FrameSpec
from argosy.protocol.header import Header
from argosy.wire.channel import Arrival, Delivery, Departure, Garbage, Peer
from argosy.wire.message import Message, blank, decode, encode

if TYPE_CHECKING:
    import torch

# What was sent may take so long to leave when a socket closes.
LINGER = 2.0
# Below this, handing memory over costs ZeroMQ more than copying it.
_COPY_BELOW = 16 * 1024

# A plain number: used at every message, and enum arithmetic is slow.
_READABLE = int(zmq.POLLIN)
# For those who cannot say again what is lost with a connection: it is not given up lightly.
_LEASE = Lease(60.0)

# What a listener is told of: these name the descriptor, so it knows whose it is (a handshake names none).
_COMING_AND_GOING = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
# What a channel is told of: here the descriptor does not matter.
_FOUND_AND_LOST = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


def _configure(sock: zmq.Socket[bytes], lease: Lease) -> None:
    sock.setsockopt(zmq.LINGER, int(LINGER * 1000))
    sock.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    # Flow is controlled by request and answer: a high-water mark would only drop or block in surprise.
    sock.setsockopt(zmq.SNDHWM, 0)
    sock.setsockopt(zmq.RCVHWM, 0)
    sock.setsockopt(zmq.HEARTBEAT_IVL, _milliseconds(lease.heartbeat))
    sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, _milliseconds(lease.heartbeat_limit))
    sock.setsockopt(zmq.HEARTBEAT_TTL, _milliseconds(lease.heartbeat_limit))
    sock.setsockopt(zmq.CONNECT_TIMEOUT, _milliseconds(lease.reconnect))
    sock.setsockopt(zmq.RECONNECT_IVL, 50)
    sock.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    sock.setsockopt(zmq.IPV6, 1)


def _endpoint(address: Address) -> str:
    return f"tcp://{address}"


def bind_address(address: Address, field: str) -> Address:
    """The numeric address to listen on, as ZeroMQ binds to no host names."""
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        pass
    else:
        return address
    try:
        # IPv4 first: what `localhost` means to most who connect to it.
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(field, "a host name that resolves", f"{address.host} ({error.strerror})") from None
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return Address(str(found[0][4][0]), address.port)


def check_exposure(address: Address, insecure: bool, task: Task) -> None:
    """Refuse to listen where strangers can connect, unless told so."""
    if not insecure and not bind_address(address, str(task)).is_loopback:
        raise ConfigError(
            f"address of {task}",
            "a loopback address",
            address,
            "anybody who reaches it could change the model: on a network that you trust, add --insecure",
        )


class ZmqListener:
    """The `Listener` of a server on a TCP port, or on a listening socket that it was handed."""

    def __init__(
        self,
        address: Address,
        *,
        field: str = "address",
        listen_fd: int | None = None,
        lease: Lease = _LEASE,
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        _configure(self._router, lease)
        self._router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if listen_fd is not None:
            self._router.setsockopt(zmq.USE_FD, listen_fd)
        self._monitor = self._router.get_monitor_socket(_COMING_AND_GOING)
        try:
            self._router.bind(_endpoint(bind_address(address, field)))
        except zmq.ZMQError as error:
            self.close()
            remedy = "is another server running there? choose a free port" if _taken(error) else ""
            raise ConfigError(field, f"a port to listen on at {address}", error.strerror, remedy) from None
        self._by_fd: dict[int, Peer] = {}
        self._is_open: dict[int, bool] = {}
        self._gone: deque[Peer] = deque()
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def receive(self, timeout: float) -> Arrival | None:
        deadline = time.monotonic() + timeout
        while (arrival := self.take()) is None:
            if not self._poller.poll(_milliseconds(deadline - time.monotonic())):
                return None
        return arrival

    def descriptors(self) -> list[int]:
        """What becomes readable when there may be something to `take`."""
        return [int(sock.getsockopt(zmq.FD)) for sock in (self._router, self._monitor)]

    def take(self) -> Arrival | None:
        """An arrival that is there already. Messages first: what a peer sent before it left still counts."""
        if int(self._router.getsockopt(zmq.EVENTS)) & _READABLE:
            return self._take_message()
        self._read_monitor()
        return Departure(self._gone.popleft()) if self._gone else None

    def _take_message(self) -> Arrival:
        frames = self._router.recv_multipart(copy=False)
        peer = frames[0].bytes
        try:
            self._note(peer, int(frames[0].get(zmq.SRCFD)))
            return Delivery(peer, decode([frame.buffer for frame in frames[1:]]))
        except WireError as error:
            return Garbage(peer, str(error))
        except zmq.ZMQError:  # random bytes may pass for ZeroMQ's first protocol, which names no descriptor
            return Garbage(peer, "message: not of a protocol that is spoken here")

    def _note(self, peer: Peer, descriptor: int) -> None:
        """Remember whose descriptor this is; it may have been another's, whose end has not been read yet."""
        if self._by_fd.get(descriptor) == peer:
            return
        self._read_monitor()
        if self._is_open.get(descriptor, True):
            self._by_fd[descriptor] = peer
        else:
            self._gone.append(peer)

    def _read_monitor(self) -> None:
        while int(self._monitor.getsockopt(zmq.EVENTS)) & _READABLE:
            event = recv_monitor_message(self._monitor)
            descriptor = int(event["value"])
            self._is_open[descriptor] = event["event"] != zmq.EVENT_DISCONNECTED
            if self._is_open[descriptor] or (peer := self._by_fd.pop(descriptor, None)) is None:
                continue
            if peer not in self._by_fd.values():  # else it has a new connection, and has spoken there
                self._gone.append(peer)

    def copies(self, peer: Peer) -> bool:
        return False

    def stands_still(self, peer: Peer) -> bool:
        return False  # heartbeats tell, and its connection ends

    def send(self, peer: Peer, header: Header, tensors: Sequence[torch.Tensor] = ()) -> bool:
        try:
            _send(self._router, [peer, *encode(header, tensors)])
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def close(self) -> None:
        if self._router.closed:
            return
        self._router.disable_monitor()
        self._monitor.close()
        self._router.close()
        self._context.term()


class ZmqChannel:
    """A `Channel` to a server at a TCP address; it connects by itself when the server is there."""

    in_place = False
    hung_up = False

    def __init__(
        self, address: Address, identity: bytes, linger: float = LINGER, lease: Lease = _LEASE
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        _configure(self._dealer, lease)
        self._dealer.setsockopt(zmq.LINGER, int(linger * 1000))
        self._dealer.setsockopt(zmq.IDENTITY, identity)
        self._monitor = self._dealer.get_monitor_socket(_FOUND_AND_LOST)
        self._dealer.connect(_endpoint(address))
        self._lost_since: float | None = None
        self.renewals = 0
        self._poller = zmq.Poller()
        self._poller.register(self._dealer, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def reserve(self, frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
        return blank(frames)

    def send(self, header: Header, tensors: Sequence[torch.Tensor] = ()) -> None:
        _send(self._dealer, encode(header, tensors))

    def receive(self, timeout: float) -> Message[Header] | None:
        deadline = time.monotonic() + timeout
        while True:
            ready = dict(self._poller.poll(_milliseconds(deadline - time.monotonic())))
            renewals = self.renewals
            if self._monitor in ready:
                self._note_connection()
            if self._dealer in ready:
                frames = self._dealer.recv_multipart(copy=False)
                return decode([frame.buffer for frame in frames])
            if not ready or self.renewals != renewals:
                return None

    def descriptors(self) -> list[int]:
        """What becomes readable when there may be something to receive, or the connection has changed."""
        return [int(sock.getsockopt(zmq.FD)) for sock in (self._dealer, self._monitor)]

    def _note_connection(self) -> None:
        event = recv_monitor_message(self._monitor)
        if event["event"] == zmq.EVENT_DISCONNECTED:
            self._lost_since = self._lost_since or time.monotonic()
        elif self._lost_since is not None:
            self._lost_since = None
            self.renewals += 1

    def lost_for(self) -> float:
        while self._monitor.poll(0):
            self._note_connection()
        return 0.0 if self._lost_since is None else time.monotonic() - self._lost_since

    def close(self) -> None:
        if self._dealer.closed:
            return
        if self.lost_for():  # nobody is there to take what was sent last
            self._dealer.setsockopt(zmq.LINGER, 0)
        self._dealer.disable_monitor()
        self._monitor.close()
        self._dealer.close()
        self._context.term()


def _send(sock: zmq.Socket[bytes], parts: Sequence[Any]) -> None:
    last = len(parts) - 1
    for index, part in enumerate(parts):
        copy = len(part) < _COPY_BELOW
        sock.send(part, zmq.SNDMORE if index < last else 0, copy=copy)


def _milliseconds(seconds: float) -> int:
    return math.ceil(max(0.0, seconds) * 1000)


def _taken(error: zmq.ZMQError) -> bool:
    return error.errno == zmq.EADDRINUSE
