"""What tasks print, on its way from their pipes to the screen and to their logs, in whole lines of bytes.

Nothing is decoded: a task may print what it likes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from argosy.cluster.spec import Task

# A line longer than this comes in pieces, or a task without newlines would fill the launcher's memory.
LONGEST_LINE = 16 << 20
_TAIL_LINES = 400
_READ_SIZE = 65536
# More than a pipe holds: one who left the task's group, and still writes, is not listened to for ever.
_DRAIN_READS = 64
_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)


class LineSplitter:
    """Chunks in, whole lines out, without their newline."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes."""
        if b"\n" not in data:
            self._rest += data
            return self.finish() if len(self._rest) > self._longest else []
        lines = data.split(b"\n")
        lines[0] = bytes(self._rest) + lines[0]
        self._rest = bytearray(lines.pop())
        return lines

    def finish(self) -> list[bytes]:
        """A last line that had no newline."""
        lines = [bytes(self._rest)] if self._rest else []
        self._rest.clear()
        return lines


class Stream:
    """One pipe of a task, read without blocking; `deliver` gets its lines."""

    def __init__(self, pipe: IO[bytes], deliver: Callable[[list[bytes]], None]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe
        self._deliver = deliver
        self._splitter = LineSplitter()

    @property
    def open(self) -> bool:
        """Whether more may come."""
        return not self._pipe.closed

    def fileno(self) -> int:
        """For poll."""
        return self._pipe.fileno()

    def read(self) -> bool:
        """Deliver what is there; False if there was nothing, or the stream has ended."""
        try:
            data = os.read(self._pipe.fileno(), _READ_SIZE)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        if lines := self._splitter.feed(data):
            self._deliver(lines)
        return True

    def drain(self) -> None:
        """Its task has ended: deliver what is left, and do not wait for whoever else still holds the pipe."""
        for _ in range(_DRAIN_READS):
            if not (self.open and self.read()):
                break
        if self.open:
            self._end()

    def _end(self) -> None:
        self._pipe.close()
        if lines := self._splitter.finish():
            self._deliver(lines)


class TaskLog:
    """A task's log file, and the last of its errors in memory, for the report of a failure."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        self._path = path
        self._complain = complain
        self._file: IO[bytes] | None = path.open("wb", buffering=0)
        self._errors: deque[bytes] = deque(maxlen=_TAIL_LINES)

    def write(self, lines: list[bytes], is_error: bool) -> None:
        """Append lines; a disk that is full costs the log and not the job, and is told of."""
        if is_error:
            self._errors.extend(lines)
        if self._file is not None:
            data = b"".join(line + b"\n" for line in lines)
            try:
                while data:  # of a disk that is nearly full, only the next write says so
                    data = data[self._file.write(data) :]
            except OSError as error:
                self.close()
                self._complain(f"cannot write {self._path}: {error.strerror}; the rest of it is not kept")

    def forget_errors(self) -> None:
        """What another process of the task has said explains nothing of the next one's end."""
        self._errors.clear()

    @property
    def errors(self) -> list[str]:
        """The last lines on stderr."""
        return [line.decode(errors="replace") for line in self._errors]

    def close(self) -> None:
        """Close the file; the tail stays."""
        if self._file is not None:
            self._file.close()
            self._file = None


def prefix(task: Task, coloured: bool) -> bytes:
    """What stands before each line of a task."""
    text = f"[{task}]"
    if coloured:
        colour = _COLOURS[(task.index * 2 + (task.job == "ps")) % len(_COLOURS)]
        text = f"\x1b[{colour}m{text}\x1b[0m"
    return text.encode() + b" "
