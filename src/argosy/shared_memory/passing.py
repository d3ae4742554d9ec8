"""How a process gives descriptors of memory, bells and the like to another: along a Unix socket (SCM_RIGHTS).

Sockets have abstract names, so nothing is in the file system. The kernel says whose process is at the other
end (SO_PEERCRED), and that a descriptor arrives at all is the proof that both ends are on one host.

A message also orders memory: the kernel puts it into the receiver's queue, and takes it out, under a lock.
What the sender wrote, or read, before it sent comes before all that the receiver does after it received,
on every processor. So a transport that sends a message for each change of the memory needs no more.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")
_DESCRIPTOR = array.array("i").itemsize
# Plain numbers: used at every message, and enum arithmetic is slow.
CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_RIGHTS = (int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS))


def listen(name: str, kind: socket.SocketKind) -> socket.socket:
    """A socket of this name that processes of this host connect to; an OSError if the name is taken."""
    server = socket.socket(socket.AF_UNIX, kind)
    try:
        server.bind(f"\0{name}")
        server.listen(128)
    except OSError:
        server.close()
        raise
    return server


def accept(server: socket.socket) -> socket.socket | None:
    """The next connection; None for one of another user, who is a stranger."""
    sock, _ = server.accept()
    if _is_ours(sock):
        return sock
    sock.close()
    return None


def connect(name: str, kind: socket.SocketKind, timeout: float | None = None) -> socket.socket:
    """A connection to the socket of this name; an OSError if there is none here, or it is a stranger's."""
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        sock.settimeout(timeout)
        sock.connect(f"\0{name}")
        if not _is_ours(sock):
            raise PermissionError(f"{name} belongs to another user")
    except OSError:
        sock.close()
        raise
    return sock


def _is_ours(sock: socket.socket) -> bool:
    """Whether our own user, or root, is at the other end."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return uid in (0, os.getuid())


def process_of(sock: socket.socket) -> int:
    """The process at the other end of a connection; 0 if it cannot be seen from here, as in a container."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[0])


def is_stopped(process: int) -> bool:
    """Whether a process is known to stand still: stopped by a signal or a debugger."""
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] in (b"T", b"t")


def send(sock: socket.socket, data: bytes, descriptors: Iterable[int], flags: int = 0) -> int:
    """Send data and descriptors, which stay ours to close; how much of the data was sent."""
    return sock.sendmsg([data], [(*_RIGHTS, array.array("i", descriptors))], flags)


def receive(sock: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """The data that comes, and the descriptors with it, which are ours to close; b"" and none at the end."""
    data, ancillary, _, _ = sock.recvmsg(size, socket.CMSG_SPACE(_DESCRIPTOR * most), CLOSE_ON_EXEC)
    return data, descriptors_in(ancillary) if ancillary else []


def descriptors_in(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    """Those of a message that `recvmsg` has received."""
    rights = [data for level, kind, data in ancillary if (level, kind) == _RIGHTS]
    return [fd for data in rights for fd in array.array("i", data[: len(data) - len(data) % _DESCRIPTOR])]


def close_all(descriptors: Iterable[int]) -> None:
    """Close each."""
    for descriptor in descriptors:
        os.close(descriptor)
