"""Connections between processes of one host: a Unix socket for headers, shared memory for tensors.

The socket's name follows from the task's port, so a task at a loopback address is found without asking; the
kernel tells which user's process is at the other end. Each session has its own connections, and its own
thread reads them, so that no message passes from thread to thread. A message is as on the network, preceded
by the sizes of its parts; its tensors lie in a buffer of sealed memory, which the receiver borrows while it
reads them.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from argosy.cluster.spec import Address
from argosy.errors import WireError
from argosy.protocol.frames import MAX_FRAME_BYTES, MAX_FRAMES, MAX_HEADER_BYTES
from argosy.protocol.header import Header
from argosy.remote.transport.borrowed_buffers import PeerBuffer
from argosy.remote.transport.send_buffers import ACK, SendBuffer, SendBufferPool
from argosy.shared_memory import passing
from argosy.shared_memory.region import Region, offsets_of
from argosy.wire.message import Message, decode, encode
from argosy.wire.tensor_bytes import bytes_of

# The number of parts, the buffer (-1: the tensors follow in the socket), and whether the buffer's memory
# travels with this message.
_HEAD = struct.Struct("<IiB")
# The first bytes of a connection: its direction, and the client whose session it belongs to.
_CLIENT = 32
TO_TASK, FROM_TASK = b">", b"<"
# Fewer bytes than this travel in the socket.
_SMALL = 16 * 1024
# With this many bytes unread, a task waits for the receiver.
MOST = 256 * 2**20
# The bytes of one read.
_GULP = 256 * 1024


def _name(port: int) -> str:
    return f"argosy-lane-{os.getuid()}-{port}"


class SameHostListener:
    """Where clients and tasks of this host connect to a task."""

    def __init__(self, port: int) -> None:
        self._server = passing.listen(_name(port), socket.SOCK_STREAM)

    def fileno(self) -> int:
        """Readable when there is a new connection."""
        return self._server.fileno()

    def accept(self) -> tuple[bytes, str, socket.socket] | None:
        """A new connection: its direction and its client. None for a process of another user."""
        with contextlib.suppress(OSError):
            sock = passing.accept(self._server)
            if sock is not None:
                sock.settimeout(1.0)  # the process is ours and sends them at once
                words = sock.recv(1 + _CLIENT, socket.MSG_WAITALL)
                sock.setblocking(False)
                if len(words) == 1 + _CLIENT:
                    return words[:1], words[1:].decode(errors="replace"), sock
                sock.close()
        return None

    def close(self) -> None:
        """Accept no more connections."""
        self._server.close()


def connect(address: Address, way: bytes, client: str) -> socket.socket:
    """Connect to a client's session on a task; an OSError if there is no such task on this host."""
    if not address.is_loopback:
        raise OSError("not on this host")
    sock = passing.connect(_name(address.port), socket.SOCK_STREAM)
    try:
        sock.sendall(way + client.encode()[:_CLIENT].ljust(_CLIENT))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def wait_for_receiver(sock: socket.socket, to_send: bool) -> None:
    """Wait, a second at most, until the other end has read or answered."""
    waiting = select.poll()
    waiting.register(sock, select.POLLOUT if to_send else select.POLLIN)
    waiting.poll(1000)


class SameHostSender:
    """Sends messages; any thread may.

    `on_full` is called with the socket while the receiver reads nothing. It must keep reading what comes to
    this process, because the other end may be waiting for that. With more than `most` bytes unread, `send`
    waits.
    """

    def __init__(
        self, sock: socket.socket, on_full: Callable[[socket.socket, bool], None], most: float = MOST
    ) -> None:
        self._lock = threading.Lock()
        self._on_full = on_full
        self._sock = sock
        self._buffers = SendBufferPool(sock, on_full, most)

    def send(self, header: Header, frames: Sequence[torch.Tensor]) -> None:
        """Send; the frames may change when this returns. Nothing happens if the receiver has gone."""
        sizes = [frame.numel() for frame in frames]
        words = _words(header, sizes)
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if sum(sizes) < _SMALL:
                body = b"".join(map(bytes_of, frames))
                self._send(_HEAD.pack(1 + len(sizes), -1, 0) + words + body)
                return
            offsets, size = offsets_of(sizes)
            buffer = self._buffers.take(size)
            for frame, offset, length in zip(frames, offsets, sizes, strict=True):
                buffer.memory[offset : offset + length].copy_(frame)
            self._send_buffer(buffer, 1 + len(sizes), words)

    def reserve(self, size: int) -> SendBuffer | None:
        """A buffer in which to compute a tensor of this size, for `send_kept` or `cancel`. None if there is
        no room, the receiver has gone, or such a tensor was written to before the receiver had read it.
        """
        return None if self._buffers.revoked else self.reserve_resident(size)

    def reserve_resident(self, size: int) -> SendBuffer | None:
        """A buffer for a tensor of this size to live in; None if there is no room or no receiver."""
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            return self._buffers.take_to_keep(size)
        return None

    def send_kept(self, header: Header, buffer: SendBuffer, size: int) -> None:
        """Send the tensor that was computed in a buffer. It may still be read; before a write, call
        `take_back`.
        """
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._send_buffer(buffer, 2, _words(header, [size]))

    def send_again(self, header: Header, buffer: SendBuffer, size: int) -> bool:
        """Send the tensor that lives in a buffer again; False if the receiver still reads the buffer, or it
        was taken back. Before a write, call `reclaim`.
        """
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if not self._buffers.retake(buffer):
                return False
            self._send_buffer(buffer, 2, _words(header, [size]))
        return True

    def reclaim(self, buffer: SendBuffer) -> bool:
        """Before a write to the tensor in a buffer: take the memory back if the receiver still reads it, and
        return whether it did.
        """
        with self._lock:
            with contextlib.suppress(OSError):  # the connection may have been closed since
                self._buffers.read_acknowledgements()
            if buffer.busy:
                buffer.take_back()
            return buffer.busy

    def take_back(self, buffer: SendBuffer) -> None:
        """As `reclaim`; if the receiver still read it, no more tensors are computed in buffers."""
        if self.reclaim(buffer):
            self._buffers.revoked = True

    def cancel(self, buffer: SendBuffer) -> None:
        """Nothing is sent from a buffer for now."""
        with self._lock:
            buffer.busy = False

    def _send_buffer(self, buffer: SendBuffer, count: int, words: bytes) -> None:
        head = _HEAD.pack(count, buffer.number, buffer.descriptor is not None)
        if buffer.descriptor is None:
            self._send(head + words)
            return
        descriptor, buffer.descriptor = buffer.descriptor, None
        try:
            while True:
                try:
                    sent = passing.send(self._sock, head, [descriptor])
                    break
                except BlockingIOError:
                    self._on_full(self._sock, True)
        finally:
            os.close(descriptor)
        self._send(head[sent:] + words)

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view.nbytes:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                self._on_full(self._sock, True)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()
        self._buffers.close()


def _words(header: Header, sizes: Sequence[int]) -> bytes:
    """A header and the sizes of all parts before it. Frames are bytes: it need not describe them."""
    words: bytes
    (words,) = encode(header)
    return struct.pack(f"<{1 + len(sizes)}Q", len(words), *sizes) + words


class SameHostReceiver:
    """Receives messages. One thread reads it, and never waits in the middle of a message."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()
        self._descriptors: deque[int] = deque()
        self._peer_buffers: dict[int, PeerBuffer] = {}

    def fileno(self) -> int:
        """Readable when something has come."""
        return self._sock.fileno()

    def take(self) -> Iterator[Message[Header]]:
        """The messages that have come. EOFError: the sender has gone; WireError: what came is not valid."""
        try:
            data, descriptors = passing.receive(self._sock, _GULP, 16)
        except BlockingIOError:
            return
        except OSError:
            raise EOFError from None
        self._descriptors.extend(descriptors)
        if not data:
            raise EOFError
        self._data += data
        while (message := self._next()) is not None:
            yield message

    def _next(self) -> Message[Header] | None:
        """The first message that was read, if it is complete."""
        data = self._data
        if len(data) < _HEAD.size:
            return None
        count, buffer, new = _HEAD.unpack_from(data)
        if not 1 <= count <= MAX_FRAMES + 1:
            raise WireError(f"message: expected at most {MAX_FRAMES} frames, got {count}")
        begin = _HEAD.size + 8 * count
        if len(data) < begin:
            return None
        sizes: tuple[int, ...] = struct.unpack_from(f"<{count}Q", data, _HEAD.size)
        if sizes[0] > MAX_HEADER_BYTES or any(size > MAX_FRAME_BYTES for size in sizes[1:]):
            raise WireError("message: larger than the limit")
        end = begin + (sizes[0] if buffer >= 0 else sum(sizes))
        if len(data) < end:
            return None
        with memoryview(data) as view:
            header = decode([bytes(view[begin : begin + sizes[0]])]).header
            if buffer >= 0:
                tensors = self._peer_buffer(buffer, bool(new)).borrow(sizes[1:])
            else:
                tensors = list(_copied(view[begin + sizes[0] : end], sizes[1:]))
        # A new bytearray: a thread that walks all objects may hold a view of the old one for a moment.
        self._data = data[end:]
        return Message(header, tensors)

    def _peer_buffer(self, buffer: int, new: bool) -> PeerBuffer:
        if new:
            if not self._descriptors:
                raise WireError("message: expected a descriptor of shared memory with it, got none")
            descriptor = self._descriptors.popleft()
            try:
                region = Region.open(descriptor)
            finally:
                os.close(descriptor)
            self._peer_buffers[buffer] = PeerBuffer(region, lambda: self._acknowledge(buffer))
        if buffer not in self._peer_buffers:
            raise WireError(f"message: expected a known buffer, got {buffer}")
        return self._peer_buffers[buffer]

    def _acknowledge(self, buffer: int) -> None:
        """Four bytes: the socket has room for them unless the sender stopped reading long ago."""
        with contextlib.suppress(OSError):
            self._sock.send(ACK.pack(buffer))

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()
        passing.close_all(self._descriptors)
        self._descriptors.clear()
        self._peer_buffers.clear()


def _copied(view: memoryview, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
    """Frames that came in the socket, in memory of torch, which is aligned for its kernels."""
    first = 0
    for size in sizes:
        tensor = torch.empty(size, dtype=torch.uint8)
        if size:
            memoryview(bytes_of(tensor)).cast("B")[:] = view[first : first + size]
        yield tensor
        first += size
