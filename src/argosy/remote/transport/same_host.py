"""The short way between processes of one machine: a Unix socket for words, shared memory for tensors.

The name of the socket follows from the task's port, so a peer at a loopback address is found without asking;
the kernel says whose process is at the other end. Each session has connections of its own, which its own
thread reads: what comes is not handed from thread to thread. A message is what it is on the network, with the
sizes of its parts before it; its tensors lie in a slot of sealed memory, which is lent to the receiver until
it needs them no more.
"""

from __future__ import annotations

import contextlib
import os
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
from argosy.remote.transport.borrowed_buffers import Lender
from argosy.remote.transport.send_buffers import ACK, Slot, Slots
from argosy.shared_memory import passing
from argosy.shared_memory.region import Region, offsets_of
from argosy.wire.message import Message, decode, encode
from argosy.wire.tensors import bytes_of

# How many parts, the slot (-1: the tensors follow in the socket), and whether its memory comes with this
# message.
_HEAD = struct.Struct("<IiB")
# The first bytes of a connection: which way it goes, and whose session it is for.
_CLIENT = 32
TO_TASK, FROM_TASK = b">", b"<"
# Less than this is not worth a slot.
_SMALL = 16 * 1024
# With so much under way, a task waits for the receiver, in bytes.
MOST = 256 * 2**20
# What is read at once.
_GULP = 256 * 1024


def _name(port: int) -> str:
    return f"argosy-lane-{os.getuid()}-{port}"


class LaneListener:
    """A task's end: peers of this machine connect to it."""

    def __init__(self, port: int) -> None:
        self._server = passing.listen(_name(port), socket.SOCK_STREAM)

    def fileno(self) -> int:
        """Readable when somebody connects."""
        return self._server.fileno()

    def accept(self) -> tuple[bytes, str, socket.socket] | None:
        """A new connection: which way it goes, and the client whose it is. None for a stranger's."""
        with contextlib.suppress(OSError):
            sock = passing.accept(self._server)
            if sock is not None:
                sock.settimeout(1.0)  # they are sent at once, by a task that is one of ours
                words = sock.recv(1 + _CLIENT, socket.MSG_WAITALL)
                sock.setblocking(False)
                if len(words) == 1 + _CLIENT:
                    return words[:1], words[1:].decode(errors="replace"), sock
                sock.close()
        return None

    def close(self) -> None:
        """Take no more."""
        self._server.close()


def connect(address: Address, way: bytes, client: str) -> socket.socket:
    """A connection for a client's session on a task; an OSError if there is no such task on this machine."""
    if not address.is_loopback:
        raise OSError("not on this machine")
    sock = passing.connect(_name(address.port), socket.SOCK_STREAM)
    try:
        sock.sendall(way + client.encode()[:_CLIENT].ljust(_CLIENT))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


class Lane:
    """A sender's end.

    Any thread may send. `on_full` is called while the receiver takes nothing, with the socket that is waited
    for: whoever also receives must go on doing so, as the other end may be waiting for just that. Beyond
    `most` bytes under way, a sender waits.
    """

    def __init__(
        self, sock: socket.socket, on_full: Callable[[socket.socket, bool], None], most: float = MOST
    ) -> None:
        self._lock = threading.Lock()
        self._on_full = on_full
        self._sock = sock
        self._slots = Slots(sock, on_full, most)

    def send(self, header: Header, frames: Sequence[torch.Tensor]) -> None:
        """Send; the frames are no longer needed when this returns. A peer that has gone is passed over."""
        sizes = [frame.numel() for frame in frames]
        words = _words(header, sizes)
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if sum(sizes) < _SMALL:
                body = b"".join(map(bytes_of, frames))
                self._send(_HEAD.pack(1 + len(sizes), -1, 0) + words + body)
                return
            offsets, size = offsets_of(sizes)
            slot = self._slots.take(size)
            for frame, offset, length in zip(frames, offsets, sizes, strict=True):
                slot.memory[offset : offset + length].copy_(frame)
            self._send_slot(slot, 1 + len(sizes), words)

    def berth(self, size: int) -> Slot | None:
        """Memory to make a tensor of this size in, for `send_berth` or `give_up`. None: there is none, the
        peer has gone, or one was taken back: whoever writes to such tensors is better off with memory of its
        own.
        """
        return None if self._slots.spoilt else self.home(size)

    def home(self, size: int) -> Slot | None:
        """Memory for a tensor of this size to live in; see `berth`."""
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            return self._slots.take_berth(size)
        return None

    def send_berth(self, header: Header, berth: Slot, size: int) -> None:
        """Send what was made there. It may be read as before, and written to after `take_back`."""
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._send_slot(berth, 2, _words(header, [size]))

    def lend(self, header: Header, berth: Slot, size: int) -> bool:
        """Send what lies in a slot once more; False if the receiver has not given it back, or it was taken
        back. It may be written to after `reclaim`.
        """
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if not self._slots.retake(berth):
                return False
            self._send_slot(berth, 2, _words(header, [size]))
        return True

    def reclaim(self, berth: Slot) -> bool:
        """What was sent from a slot is about to be written to: take it back, unless it was given back.
        Whether it had to be.
        """
        with self._lock:
            with contextlib.suppress(OSError):  # the lane may have been closed since
                self._slots.hear()
            if berth.busy:
                berth.take_back()
            return berth.busy

    def take_back(self, berth: Slot) -> None:
        """As `reclaim`; if it had to be, nothing else is made in slots."""
        if self.reclaim(berth):
            self._slots.spoilt = True

    def give_up(self, berth: Slot) -> None:
        """Nothing is sent from there, for the time being."""
        with self._lock:
            berth.busy = False

    def _send_slot(self, slot: Slot, count: int, words: bytes) -> None:
        head = _HEAD.pack(count, slot.number, slot.descriptor is not None)
        if slot.descriptor is None:
            self._send(head + words)
            return
        descriptor, slot.descriptor = slot.descriptor, None
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
        """Hang up."""
        self._sock.close()
        self._slots.close()


def _words(header: Header, sizes: Sequence[int]) -> bytes:
    """A header and the sizes of all parts before it. Frames are bytes: it need not describe them."""
    words: bytes
    (words,) = encode(header)
    return struct.pack(f"<{1 + len(sizes)}Q", len(words), *sizes) + words


class Inlet:
    """A receiver's end, read by one thread, which never waits in the middle of a message."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()
        self._descriptors: deque[int] = deque()
        self._lenders: dict[int, Lender] = {}

    def fileno(self) -> int:
        """Readable when there is something to take."""
        return self._sock.fileno()

    def take(self) -> Iterator[Message[Header]]:
        """The messages that have come. EOFError: no more will; a WireError: nothing that may be believed."""
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
        """The first message of what was read, if it is whole."""
        data = self._data
        if len(data) < _HEAD.size:
            return None
        count, slot, new = _HEAD.unpack_from(data)
        if not 1 <= count <= MAX_FRAMES + 1:
            raise WireError(f"message: expected at most {MAX_FRAMES} frames, got {count}")
        begin = _HEAD.size + 8 * count
        if len(data) < begin:
            return None
        sizes: tuple[int, ...] = struct.unpack_from(f"<{count}Q", data, _HEAD.size)
        if sizes[0] > MAX_HEADER_BYTES or any(size > MAX_FRAME_BYTES for size in sizes[1:]):
            raise WireError("message: larger than it may be")
        end = begin + (sizes[0] if slot >= 0 else sum(sizes))
        if len(data) < end:
            return None
        with memoryview(data) as view:
            header = decode([bytes(view[begin : begin + sizes[0]])]).header
            if slot >= 0:
                tensors = self._lender(slot, bool(new)).lend(sizes[1:])
            else:
                tensors = list(_copied(view[begin + sizes[0] : end], sizes[1:]))
        # Not cut in place: a thread that walks all objects may hold a view of it for a moment longer.
        self._data = data[end:]
        return Message(header, tensors)

    def _lender(self, slot: int, new: bool) -> Lender:
        if new:
            if not self._descriptors:
                raise WireError("message: expected memory with it")
            descriptor = self._descriptors.popleft()
            try:
                region = Region.open(descriptor)
            finally:
                os.close(descriptor)
            self._lenders[slot] = Lender(region, lambda: self._give_back(slot))
        if slot not in self._lenders:
            raise WireError(f"message: expected memory that is known, got slot {slot}")
        return self._lenders[slot]

    def _give_back(self, slot: int) -> None:
        """Four bytes: a socket has room for them, or its other end has long stopped to read."""
        with contextlib.suppress(OSError):
            self._sock.send(ACK.pack(slot))

    def close(self) -> None:
        """Hang up."""
        self._sock.close()
        passing.close_all(self._descriptors)
        self._descriptors.clear()
        self._lenders.clear()


def _copied(view: memoryview, sizes: Sequence[int]) -> Iterator[torch.Tensor]:
    """Frames that came in the socket, in torch's own memory, which is aligned as its kernels like it."""
    first = 0
    for size in sizes:
        tensor = torch.empty(size, dtype=torch.uint8)
        if size:
            memoryview(bytes_of(tensor)).cast("B")[:] = view[first : first + size]
        yield tensor
        first += size
