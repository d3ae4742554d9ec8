"""The short way between tasks of one machine: a Unix socket, into which tensors are written from where they
lie.

The name of the socket follows from the task's port, so a peer at a loopback address is found without asking;
the kernel says whose process is at the other end. A message is what it is on the network, with the sizes of
its parts before it. A sender waits until the kernel has taken all of it, so that nothing needs to be copied
first.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Sequence

import torch

from argosy.cluster.spec import Address
from argosy.errors import WireError
from argosy.wire.frames import MAX_FRAME_BYTES, MAX_FRAMES, MAX_HEADER_BYTES
from argosy.wire.message import Message, decode, encode
from argosy.wire.protocol import Header
from argosy.wire.tensors import bytes_of

_COUNT = struct.Struct("<I")
_SIZE = struct.Struct("<Q")
_CREDENTIALS = struct.Struct("3i")
_BUFFER = 4 * 2**20


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

    def fileno(self) -> int:
        """Readable when somebody connects."""
        return self._server.fileno()

    def accept(self) -> int | None:
        """A new connection's descriptor, to be watched; None for a stranger's."""
        with contextlib.suppress(OSError):
            sock, _ = self._server.accept()
            if _is_ours(sock):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
                self._peers[sock.fileno()] = sock
                return sock.fileno()
            sock.close()
        return None

    def receive(self, descriptor: int) -> Message[Header] | None:
        """The message on a connection; None: it has ended. A WireError ends it too."""
        sock = self._peers[descriptor]
        try:
            return _receive(sock)
        except (OSError, EOFError):
            self.drop(descriptor)
            return None
        except WireError:
            self.drop(descriptor)
            raise

    def drop(self, descriptor: int) -> None:
        """Hang up on a peer."""
        self._peers.pop(descriptor).close()

    def close(self) -> None:
        """Hang up on all."""
        self._server.close()
        for sock in self._peers.values():
            sock.close()
        self._peers.clear()


class Lane:
    """A sender's end. Raises OSError if there is no such task on this machine."""

    def __init__(self, address: Address) -> None:
        if not address.is_loopback:
            raise OSError("not on this machine")
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._sock.connect(_name(address.port))
            if not _is_ours(self._sock):
                raise PermissionError("another user's")
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        except OSError:
            self._sock.close()
            raise

    def send(self, header: Header, frames: Sequence[torch.Tensor]) -> None:
        """Send; the frames are no longer needed when this returns. A peer that has gone is passed over."""
        parts = encode(header, frames)
        sizes = b"".join(_SIZE.pack(len(part)) for part in parts)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._sock.sendall(_COUNT.pack(len(parts)) + sizes + parts[0])
            for part in parts[1:]:
                self._sock.sendall(part)

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


def _receive(sock: socket.socket) -> Message[Header]:
    (count,) = _COUNT.unpack(_read(sock, _COUNT.size))
    if not 1 <= count <= MAX_FRAMES + 1:
        raise WireError(f"message: expected at most {MAX_FRAMES} frames, got {count - 1}")
    sizes = [size for (size,) in _SIZE.iter_unpack(_read(sock, _SIZE.size * count))]
    if sizes[0] > MAX_HEADER_BYTES or any(size > MAX_FRAME_BYTES for size in sizes[1:]):
        raise WireError("message: larger than it may be")
    parts: list[object] = [_read(sock, sizes[0])]
    for size in sizes[1:]:
        # Into torch's own memory, which is aligned as its kernels like it.
        part = bytes_of(torch.empty(size, dtype=torch.uint8))
        _read_into(sock, memoryview(part).cast("B"))
        parts.append(part)
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
