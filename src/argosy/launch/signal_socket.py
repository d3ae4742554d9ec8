"""Signals as bytes on a socket, so that the launcher's loop waits for them beside everything else."""

from __future__ import annotations

import signal
import socket
from types import FrameType, TracebackType
from typing import Any

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalSocket:
    """While entered, signals do nothing but become readable here. Only in the main thread."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> SignalSocket:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (*INTERRUPTS, signal.SIGCHLD):
            # `nohup argosy run` means that closing the terminal must not end the job.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, _do_nothing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        """For poll."""
        return self._reader.fileno()

    def take(self) -> list[int]:
        """The signals that came since the last call, in order."""
        try:
            return list(self._reader.recv(4096))
        except BlockingIOError:
            return []


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """The byte on the socket says it all; without a handler there would be none."""
