"""The short way between tasks of one machine: a Unix socket for words, shared memory for tensors.

The name of the socket follows from the task's port, so a peer at a loopback address is found without asking;
the kernel says whose process is at the other end. A message is what it is on the network, with the sizes of
its parts before it; its tensors lie in a slot of sealed memory, which the receiver copies out of and gives
back.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from argosy.cluster.spec import Address
from argosy.errors import WireError
from argosy.wire.frames import MAX_FRAME_BYTES, MAX_FRAMES, MAX_HEADER_BYTES, FrameSpec
from argosy.wire.message import Message, decode, encode
from argosy.wire.protocol import Header
from argosy.wire.shared_memory import Region, place
from argosy.wire.tensors import bytes_of

# How many parts, the slot (-1: the tensors follow in the socket), and whether its memory comes with this
# message.
_HEAD = struct.Struct("<IiB")
_SIZE = struct.Struct("<Q")
_ACK = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")
# Less than this is not worth a slot.
_SMALL = 16 * 1024
# With so much under way, a sender waits for the receiver.
_MOST = 256 * 2**20


def _name(port: int) -> str:
    return f"\0argosy-lane-{os.getuid()}-{port}"


def _is_ours(sock: socket.socket) -> bool:
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(data)[1] in (0, os.getuid())


class LaneListener:
    """A task's end: peers of this machine connect to it."""

    def __init__(self, port: int) -> None:
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._server.bind(_name(port))
            self._server.listen()
        except OSError:
            self._server.close()
            raise
        self._peers: dict[int, socket.socket] = {}
        self._slots: dict[int, dict[int, Region]] = {}

    def fileno(self) -> int:
        """Readable when somebody connects."""
        return self._server.fileno()

    def accept(self) -> int | None:
        """A new connection's descriptor, to be watched; None for a stranger's."""
        with contextlib.suppress(OSError):
            sock, _ = self._server.accept()
            if _is_ours(sock):
                self._peers[sock.fileno()] = sock
                self._slots[sock.fileno()] = {}
                return sock.fileno()
            sock.close()
        return None

    def receive(self, descriptor: int) -> Message[Header] | None:
        """The message on a connection; None: it has ended. A WireError ends it too."""
        sock = self._peers[descriptor]
        try:
            return _receive(sock, self._slots[descriptor])
        except (OSError, EOFError):
            self.drop(descriptor)
            return None
        except WireError:
            self.drop(descriptor)
            raise

    def drop(self, descriptor: int) -> None:
        """Hang up on a peer."""
        self._peers.pop(descriptor).close()
        del self._slots[descriptor]

    def close(self) -> None:
        """Hang up on all."""
        self._server.close()
        for sock in self._peers.values():
            sock.close()
        self._peers.clear()
        self._slots.clear()


@dataclass
class _Slot:
    """Memory for one message at a time."""

    region: Region
    busy: bool = True


class Lane:
    """A sender's end. Raises OSError if there is no such task on this machine."""

    def __init__(self, address: Address) -> None:
        if not address.is_loopback:
            raise OSError("not on this machine")
        self._slots: list[_Slot] = []
        self._acks = b""
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.connect(_name(address.port))
            if not _is_ours(self._sock):
                raise PermissionError("another user's")
        except OSError:
            self._sock.close()
            raise

    def send(self, header: Header, frames: Sequence[torch.Tensor]) -> None:
        """Send; the frames are no longer needed when this returns. A peer that has gone is passed over."""
        parts = encode(header, frames)
        sizes = b"".join(_SIZE.pack(len(part)) for part in parts)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if sum(map(len, parts[1:])) < _SMALL:
                self._sock.sendall(_HEAD.pack(len(parts), -1, 0) + sizes + b"".join(parts))
            else:
                self._send_in_slot(frames, len(parts), sizes + parts[0])

    def _send_in_slot(self, frames: Sequence[torch.Tensor], count: int, words: bytes) -> None:
        placed, size = place([FrameSpec("uint8", (frame.numel(),)) for frame in frames])
        number, slot, descriptor = self._slot(size)
        for frame, where in zip(frames, placed, strict=True):
            slot.region.tensor(where).copy_(frame)
        head = _HEAD.pack(count, number, descriptor is not None)
        try:
            sent = (
                self._sock.send(head)
                if descriptor is None
                else socket.send_fds(self._sock, [head], [descriptor])
            )
        finally:
            if descriptor is not None:
                os.close(descriptor)
        self._sock.sendall(head[sent:] + words)

    def _slot(self, size: int) -> tuple[int, _Slot, int | None]:
        """A slot of this size that nobody reads, and the descriptor of its memory if it is new."""
        self._take_acks(wait=False)
        while sum(slot.region.size for slot in self._slots if slot.busy) > _MOST:
            self._take_acks(wait=True)
        for number, slot in enumerate(self._slots):
            if not slot.busy and size <= slot.region.size <= 4 * size:
                slot.busy = True
                return number, slot, None
        region, descriptor = Region.create(size)
        self._slots.append(_Slot(region))
        return len(self._slots) - 1, self._slots[-1], descriptor

    def _take_acks(self, wait: bool) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := self._sock.recv(4096, 0 if wait else socket.MSG_DONTWAIT):
                self._acks += data
                wait = False
            if wait:
                raise BrokenPipeError
        whole = len(self._acks) // _ACK.size * _ACK.size
        for (number,) in _ACK.iter_unpack(self._acks[:whole]):
            if number < len(self._slots):
                self._slots[number].busy = False
        self._acks = self._acks[whole:]

    def close(self) -> None:
        """Hang up."""
        self._sock.close()
        self._slots.clear()


def _receive(sock: socket.socket, slots: dict[int, Region]) -> Message[Header]:
    first, descriptors, _, _ = socket.recv_fds(sock, _HEAD.size, 1)
    try:
        if not first:
            raise EOFError
        count, slot, new = _HEAD.unpack(first + _read(sock, _HEAD.size - len(first)))
        if new and descriptors:
            slots[slot] = Region.open(descriptors[0])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    if not 1 <= count <= MAX_FRAMES + 1 or (slot >= 0 and slot not in slots):
        raise WireError(f"message: expected at most {MAX_FRAMES} frames in memory that is known, got {count}")
    sizes = [size for (size,) in _SIZE.iter_unpack(_read(sock, _SIZE.size * count))]
    if sizes[0] > MAX_HEADER_BYTES or any(size > MAX_FRAME_BYTES for size in sizes[1:]):
        raise WireError("message: larger than it may be")
    parts: list[object] = [_read(sock, sizes[0])]
    placed, _ = place([FrameSpec("uint8", (size,)) for size in sizes[1:]])
    for where in placed:
        # Into torch's own memory, which is aligned as its kernels like it.
        memory = torch.empty(where.frame.nbytes, dtype=torch.uint8)
        part = bytes_of(memory)
        if slot >= 0:
            memory.copy_(slots[slot].tensor(where))
        else:
            _read_into(sock, memoryview(part).cast("B"))
        parts.append(part)
    if slot >= 0:
        sock.sendall(_ACK.pack(slot))
    return decode(parts)


def _read(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    _read_into(sock, memoryview(data))
    return data


def _read_into(sock: socket.socket, view: memoryview) -> None:
    while view.nbytes:
        got = sock.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
