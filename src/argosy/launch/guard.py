"""A tiny process that outlives the launcher and ends its tasks, should the launcher be killed with -9.

The launcher holds one end of a socket pair, the guard the other. Each task names its own process group on
that socket before its program runs, and holds the launcher's end until then: so the end of the stream, by
which the guard knows that the launcher has gone, cannot come before every group is known. This file is also
the guard's program, run in isolation (`python -I -S`): it may import nothing but light standard modules.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

_WATCH, _FORGET, _DIRECTORY, _DISMISS = b"+", b"-", b"d", b"."
_END = b"\0"


class Guard:
    """The launcher's side."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )

    @property
    def pid(self) -> int:
        """The guard's own process."""
        return self._process.pid

    def fileno(self) -> int:
        """The launcher's end, for a task that does not inherit it: see `watch_this_process` below."""
        return self._socket.fileno()

    def watch_this_process(self) -> None:
        """Called in a task that leads its group, after fork and before exec."""
        watch_this_process(self._socket)

    def forget(self, group: int) -> None:
        """The group has ended; its number may soon be another's."""
        _tell(self._socket, _FORGET, str(group).encode())

    def watch_directory(self, path: Path) -> None:
        """Remove `path` too, which need not exist yet."""
        _tell(self._socket, _DIRECTORY, os.fsencode(path))

    def dismiss(self) -> None:
        """The job is over, and everything was cleared away."""
        _tell(self._socket, _DISMISS, b"")
        self._socket.close()
        self._process.wait()


def watch_this_process(guard: socket.socket) -> None:
    """The same for one who has but the launcher's end of the socket."""
    _tell(guard, _WATCH, str(os.getpid()).encode())


def _tell(guard: socket.socket, word: bytes, value: bytes) -> None:
    # A guard that somebody killed is no reason to end the job, nor to die of SIGPIPE.
    with contextlib.suppress(OSError):
        guard.sendall(word + value + _END, socket.MSG_NOSIGNAL)


def _read_until_end(stream: int) -> bytes:
    received = bytearray()
    while not received.endswith(_DISMISS + _END):
        data = os.read(stream, 65536)
        if not data:
            break
        received += data
    return bytes(received)


def orders(received: bytes) -> tuple[set[int], list[bytes]]:
    """The groups to kill and the directories to remove, after these messages and the end of the stream."""
    groups: set[int] = set()
    directories: list[bytes] = []
    for message in received.split(_END):
        word, value = message[:1], message[1:]
        if word == _WATCH:
            groups.add(int(value))
        elif word == _FORGET:
            groups.discard(int(value))
        elif word == _DIRECTORY:
            directories.append(value)
        elif word == _DISMISS:
            return set(), []
    return groups, directories


def _main() -> None:
    groups, directories = orders(_read_until_end(sys.stdin.fileno()))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _main()
