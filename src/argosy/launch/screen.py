"""The launcher's only writer: lines of all tasks go out whole, one after the other, and never block it.

Whoever reads our output may be slow or gone. Then lines wait here, and the launcher still obeys Ctrl-C.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque

from argosy.cluster.spec import Task
from argosy.launch.output import prefix

_OUT, _ERR = 1, 2
# After poll has said "writable", a pipe takes this much without blocking.
_CHUNK = select.PIPE_BUF
_FULL = 1 << 20
_ERASE = b"\r\x1b[K"


class Screen:
    """Queues what is to be written, for standard output and standard error in one order."""

    def __init__(self, out: int = _OUT, err: int = _ERR) -> None:
        self._fds = {_OUT: out, _ERR: err}
        self._queue: deque[tuple[int, bytearray]] = deque()
        self._size = 0
        self._status = b""  # what is shown now
        self.broken = False
        colours = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._coloured = {name: colours and os.isatty(fd) for name, fd in self._fds.items()}

    def say(self, text: str) -> None:
        """A line of the launcher on standard output."""
        self._put(_OUT, _encode(text))

    def warn(self, text: str) -> None:
        """A line, or several, of the launcher on standard error."""
        self._put(_ERR, _encode(text))

    def relay(self, task: Task, lines: list[bytes], is_error: bool) -> None:
        """Lines of a task."""
        name = _ERR if is_error else _OUT
        start = prefix(task, self._coloured[name])
        self._put(name, b"".join(start + line + b"\n" for line in lines))

    def show_status(self, text: str) -> None:
        """On a terminal: a line, or a few, below all others until the next one is written.

        They must fit in `room`, or what was wrapped would not be found again to be erased.
        """
        status = text.encode()
        if self.has_status and not self._queue and status != self._status:
            self._put(_OUT, status)
            self._status = status

    @property
    def room(self) -> tuple[int, int]:
        """The columns and lines that a status may take."""
        size = os.get_terminal_size(self._fds[_OUT])
        return max(1, (size.columns or 80) - 1), max(1, (size.lines or 24) - 1)  # 0: not known

    @property
    def has_status(self) -> bool:
        """Whether a status line can be shown: all that we write must be on a terminal."""
        return all(self._coloured.values())

    def erase_status(self) -> None:
        """Leave no status line behind."""
        self._put(_OUT, b"")

    @property
    def waits_for(self) -> int | None:
        """The descriptor that must become writable before more can go out; None if all has gone out."""
        return self._queue[0][0] if self._queue else None

    @property
    def full(self) -> bool:
        """Whether tasks should be read no further until something has gone out."""
        return self._size > _FULL

    def advance(self) -> None:
        """Write some of what waits; call when `waits_for` is writable."""
        fd, data = self._queue[0]
        try:
            written = os.write(fd, data[:_CHUNK])
        except BlockingIOError:
            return
        except OSError:  # the reader has gone (EPIPE), or there never was one
            self._discard()
            return
        del data[:written]
        self._size -= written
        if not data:
            self._queue.popleft()

    def flush(self, seconds: float | None = None) -> None:
        """Write all that waits, for so long at most; what is left then is dropped."""
        end = None if seconds is None else time.monotonic() + seconds
        while self._queue:
            left = None if end is None else max(0.0, end - time.monotonic()) * 1000
            poller = select.poll()
            poller.register(self._queue[0][0], select.POLLOUT)
            if not poller.poll(left):
                self._drop()
                return
            self.advance()

    def _put(self, name: int, data: bytes) -> None:
        if self.broken:
            return
        if self._status:
            above = self._status.count(b"\n")
            self._status = b""
            self._append(self._fds[_OUT], b"\r\x1b[%dA\x1b[J" % above if above else _ERASE)
        self._append(self._fds[name], data)

    def _append(self, fd: int, data: bytes) -> None:
        if not data:
            return
        if self._queue and self._queue[-1][0] == fd:
            self._queue[-1][1].extend(data)
        else:
            self._queue.append((fd, bytearray(data)))
        self._size += len(data)

    def _discard(self) -> None:
        self.broken = True
        self._drop()

    def _drop(self) -> None:
        self._queue.clear()
        self._size = 0


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogateescape") + b"\n"
