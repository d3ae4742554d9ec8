"""`DIRECTORY/events.jsonl`: what happened to a training, one JSON object a line.

Lines are only ever appended, each with one write, so several processes may do so. A line that was torn by a
crash is closed by the next one, and passed over by `read`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgspec

from argosy.errors import UNDECODABLE
from argosy.events import say

NAME = "events.jsonl"
# Journals that could not be written to when last tried: a disk that stays full is told of once a process.
_unwritable: set[Path] = set()


def record(directory: str | os.PathLike[str], kind: str, /, **fields: Any) -> None:
    """Append an event to the journal of a directory: `record("runs/a", "saved", step=1000)`.

    Never raises: a disk that is full must not end a training. It is said instead.
    """
    journal = Journal(directory)
    try:
        journal.record(kind, **fields)
    finally:
        journal.close()


class Journal:
    """The journal of one directory, kept open; any thread may write."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory) / NAME
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._torn = False

    def record(self, kind: str, /, **fields: Any) -> None:
        """Append an event, with the time. See `argosy.observe.record`."""
        self.record_at(time.time(), kind, **fields)

    def record_at(self, when: float, kind: str, /, **fields: Any) -> None:
        """Append an event of an earlier time."""
        head = {"time": round(when, 3), "event": kind}
        line = msgspec.json.encode(head | fields | head) + b"\n"
        with self._lock:
            try:
                self._append(line)
                _unwritable.discard(self.path)
            except OSError as error:
                if self.path not in _unwritable:
                    _unwritable.add(self.path)
                    say(f"cannot write {self.path}: {error.strerror}; the training goes on")

    def _append(self, line: bytes) -> None:
        if self._descriptor is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._torn = not _ends_whole(self._descriptor)
        data = b"\n" + line if self._torn else line
        self._torn = True
        while data:  # of a disk that is nearly full, only the next write says so
            data = data[os.write(self._descriptor, data) :]
        self._torn = False

    def close(self) -> None:
        """Done; a later `record` opens it again."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


def _ends_whole(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return not size or os.pread(descriptor, 1, size - 1) == b"\n"


def read(directory: str | os.PathLike[str], kinds: Collection[str] | None = None) -> Iterator[dict[str, Any]]:
    """The events of a directory, in order, whole ones only. Raises OSError if there is no journal.

    `kinds`: only these; lines of others are passed over quickly, as a journal may be long.
    """
    marks = None if kinds is None else [f'"event":"{kind}"'.encode() for kind in kinds]
    with (Path(directory) / NAME).open("rb") as file:
        for line in file:
            if marks is not None and not any(mark in line for mark in marks):
                continue
            try:
                event = msgspec.json.decode(line)
            except UNDECODABLE:
                continue
            if isinstance(event, dict) and "event" in event and (kinds is None or event["event"] in kinds):
                yield event
