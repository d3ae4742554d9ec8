"""Messages between processes of one host: a Unix socket carries a few bytes, shared memory the tensors.

The socket has an abstract name, drawn by lot, and new memory comes along with the message that needs it. A
connection that ends here means that its process has ended.

A received tensor lies in the sender's arena: it stays as it is until the receiver has answered, or asked for
more. Whoever needs it longer makes a copy.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
import uuid
from collections.abc import Sequence

import msgspec
import torch

from argosy.errors import UNDECODABLE, WireError
from argosy.protocol.frames import MAX_FRAMES, MAX_HEADER_BYTES, FrameSpec
from argosy.protocol.header import Header
from argosy.shared_memory import passing
from argosy.shared_memory.region import Region
from argosy.wire.arena import Arena, Placed, tensor_at
from argosy.wire.channel import Arrival, Delivery, Departure, Garbage, Peer
from argosy.wire.message import Message

# A packet of a SEQPACKET socket; a larger one travels in memory of its own, and an empty one stands for it.
_PACKET = 64 * 1024
_BUFFER = 4 * 2**20
_SPACE = socket.CMSG_SPACE(4 * 4)  # for four descriptors
_TIME = struct.Struct("@ll")  # a timeval
# Plain numbers: used at every message, and enum arithmetic is slow.
_CUT_SHORT = int(socket.MSG_TRUNC) | int(socket.MSG_CTRUNC)
_DO_NOT_WAIT = int(socket.MSG_DONTWAIT)


class _Envelope(msgspec.Struct, array_like=True):
    """What a packet says: the header, where its tensors are, and whether new memory comes with it.

    The places (of type `list[Placed]`) stay encoded: they are the same in every message of a kind, and bytes
    that were decoded before need not be decoded again.
    """

    header: Header
    places: msgspec.Raw
    new_arena: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Envelope)
_places_decoder = msgspec.msgpack.Decoder(list[Placed])
_NO_PLACES = _encoder.encode([])


class _Connection:
    """One end of a connection, the same for client and server."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._arena = Arena()
        self._theirs: Region | None = None
        self._said: tuple[Sequence[Placed], bytes] = ((), _NO_PLACES)  # as I last sent them
        self._heard: tuple[bytes, Sequence[torch.Tensor]] = (_NO_PLACES, ())  # as they last came
        # A packet goes through memory that stays: to have as much made for each costs more than the rest.
        self._packet = bytearray(_PACKET)
        self._packet_view = memoryview(self._packet)
        self.process = passing.process_of(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)

    def fileno(self) -> int:
        return self._sock.fileno()

    def reserve(self, frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
        return self._arena.reserve(frames)

    def send(self, header: Header, tensors: Sequence[torch.Tensor], flags: int = 0) -> None:
        places = _NO_PLACES
        if tensors:
            laid = self._arena.lay(tensors)
            if laid is not self._said[0]:
                self._said = (laid, _encoder.encode(laid))
            places = self._said[1]
        news = self._arena.take_news() if self._arena.has_news else None
        packet = _encoder.encode(_Envelope(header, msgspec.Raw(places), news is not None))
        if news is None and len(packet) <= _PACKET:  # as nearly all are
            self._sock.send(packet, flags)
            return
        descriptors = [] if news is None else [news]
        try:
            if len(packet) > _PACKET:
                descriptors.append(os.memfd_create("argosy-header", os.MFD_CLOEXEC))
                os.write(descriptors[-1], packet)
                packet = b""
            passing.send(self._sock, packet, descriptors, flags)
        finally:
            passing.close_all(descriptors)

    def receive(self, flags: int = 0) -> Message[Header] | None:
        """The next message, waited for unless `flags` say otherwise; None: the other end has hung up.

        Raises BlockingIOError if there is none in time.
        """
        flags |= passing.CLOSE_ON_EXEC
        size, ancillary, flags, _ = self._sock.recvmsg_into([self._packet], _SPACE, flags)
        packet = bytes(self._packet_view[:size])
        if packet and not ancillary and not flags & _CUT_SHORT:  # as nearly all are
            return self._decode(packet, [])
        descriptors = passing.descriptors_in(ancillary)
        try:
            if not packet and not descriptors:
                return None
            if flags & _CUT_SHORT:
                raise WireError("packet: larger than it may be")
            return self._decode(packet or _read_long(descriptors[-1]), descriptors)
        finally:
            passing.close_all(descriptors)

    def _decode(self, packet: bytes, descriptors: list[int]) -> Message[Header]:
        try:
            envelope = _decoder.decode(packet)
        except UNDECODABLE as error:
            raise WireError(f"header: {error}") from None
        if envelope.new_arena:
            if not descriptors:
                raise WireError("shared memory: none came")
            self._theirs = Region.open(descriptors[0])
            self._heard = (_NO_PLACES, ())
        places = bytes(envelope.places)
        if places == _NO_PLACES:
            return Message(envelope.header)
        if places != self._heard[0]:
            self._heard = (places, self._tensors_at(places))
        return Message(envelope.header, self._heard[1])

    def _tensors_at(self, places: bytes) -> Sequence[torch.Tensor]:
        try:
            decoded = _places_decoder.decode(places)
        except UNDECODABLE as error:
            raise WireError(f"frames: {error}") from None
        if len(decoded) > MAX_FRAMES:
            raise WireError(f"frames: expected at most {MAX_FRAMES}, got {len(decoded)}")
        if self._theirs is None:
            raise WireError("shared memory: none was given")
        return tuple(tensor_at(self._theirs, each) for each in decoded)

    def close(self) -> None:
        self._arena.close()
        self._sock.close()


def _read_long(descriptor: int) -> bytes:
    """A packet that came in memory of its own."""
    size = os.fstat(descriptor).st_size
    if not 0 < size <= MAX_HEADER_BYTES:
        raise WireError(f"header: expected at most {MAX_HEADER_BYTES} bytes in memory, got {size}")
    try:
        return os.pread(descriptor, size, 0)
    except OSError as error:
        raise WireError(f"header: cannot be read ({error})") from None


class UnixListener:
    """A server's inbox for the processes of its own host."""

    def __init__(self) -> None:
        self.name = f"argosy-{uuid.uuid4().hex}"
        self._server = passing.listen(self.name, socket.SOCK_SEQPACKET)
        self._server.setblocking(False)
        self._connections: dict[int, tuple[Peer, _Connection]] = {}
        self._by_peer: dict[Peer, _Connection] = {}
        self._count = 0
        self.epoll = select.epoll()
        self.epoll.register(self._server, select.EPOLLIN)

    def receive(self, timeout: float) -> Arrival | None:
        """See `Listener`."""
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            ready = self.epoll.poll(left, 1)
            if not ready:
                return None
            if (arrival := self.take(ready[0][0])) is not None:
                return arrival

    def take(self, descriptor: int) -> Arrival | None:
        """What came on a descriptor that is ready; None if it was a new connection, or not ours."""
        if descriptor == self._server.fileno():
            self._accept()
            return None
        if descriptor not in self._connections:
            return None
        peer, connection = self._connections[descriptor]
        try:
            message = connection.receive()
        except WireError as error:
            return Garbage(peer, str(error))
        except OSError:
            message = None
        if message is None:
            self._drop(peer)
            return Departure(peer, final=True)
        return Delivery(peer, message)

    def _accept(self) -> None:
        try:
            sock = passing.accept(self._server)
        except OSError:
            return
        if sock is None:
            return
        self._count += 1
        # Peers of the network name themselves: nobody there knows this name.
        peer = f"{self.name}/{uuid.uuid4().hex}/{self._count}".encode()
        connection = _Connection(sock)
        self._connections[sock.fileno()] = (peer, connection)
        self._by_peer[peer] = connection
        self.epoll.register(sock, select.EPOLLIN)

    def _drop(self, peer: Peer) -> None:
        connection = self._by_peer.pop(peer)
        self.epoll.unregister(connection.fileno())
        del self._connections[connection.fileno()]
        connection.close()

    def knows(self, peer: Peer) -> bool:
        """Whether a peer is connected here."""
        return peer in self._by_peer

    def copies(self, peer: Peer) -> bool:
        """See `Listener`."""
        return True

    def stands_still(self, peer: Peer) -> bool:
        """See `Listener`."""
        return passing.is_stopped(self._by_peer[peer].process)

    def send(self, peer: Peer, header: Header, tensors: Sequence[torch.Tensor] = ()) -> bool:
        """See `Listener`."""
        if (connection := self._by_peer.get(peer)) is None:
            return False
        # One that does not read its answers must not hold up the rest: it counts as gone, and its end of
        # the connection tells the loop so.
        try:
            connection.send(header, tensors, _DO_NOT_WAIT)
        except OSError:
            with contextlib.suppress(OSError):
                connection._sock.shutdown(socket.SHUT_RDWR)
            return False
        return True

    def close(self) -> None:
        """See `Listener`."""
        for peer in list(self._by_peer):
            self._drop(peer)
        self.epoll.close()
        self._server.close()


class UnixChannel:
    """A client's way to a server on its own host. Raises OSError if there is no such server here."""

    in_place = True
    renewals = 0

    def __init__(self, name: str) -> None:
        self._sock = sock = passing.connect(name, socket.SOCK_SEQPACKET)
        self._connection = _Connection(sock)
        self._patience = 0.0  # the seconds after which the kernel ends a wait; 0: it does not
        self._lost_since: float | None = None
        self._stopped_since: float | None = None

    def reserve(self, frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
        """See `Channel`."""
        return self._connection.reserve(frames)

    def send(self, header: Header, tensors: Sequence[torch.Tensor] = ()) -> None:
        """See `Channel`."""
        try:
            self._connection.send(header, tensors)
        except (BrokenPipeError, ConnectionResetError):
            self._lose()

    def receive(self, timeout: float) -> Message[Header] | None:
        """See `Channel`."""
        try:
            message = self._connection.receive(self._wait_at_most(timeout))
        except BlockingIOError:
            return None
        except ConnectionResetError:
            message = None
        if message is None:
            if self._lost_since is not None:  # nothing more will come: do not let a caller spin
                time.sleep(min(timeout, 0.1))
            self._lose()
        return message

    def _wait_at_most(self, seconds: float) -> int:
        """Have the kernel keep to a time limit, so that a wait is one system call; the flags for it."""
        if seconds <= 0:
            return _DO_NOT_WAIT
        if seconds != self._patience:
            self._patience = seconds
            limit = _TIME.pack(int(seconds), max(1, int(seconds % 1 * 1e6)))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        return 0

    def _lose(self) -> None:
        if self._lost_since is None:
            self._lost_since = time.monotonic()

    @property
    def hung_up(self) -> bool:
        """See `Channel`."""
        return self._lost_since is not None

    def lost_for(self) -> float:
        """See `Channel`. A process that is stopped is out of reach, though its connection stands."""
        now = time.monotonic()
        if self._lost_since is not None:
            return now - self._lost_since
        if not passing.is_stopped(self._connection.process):
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = now
        return 0.0 if self._stopped_since is None else now - self._stopped_since

    def close(self) -> None:
        """See `Channel`."""
        self._connection.close()
