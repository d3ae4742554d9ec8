"""A look at the job every second, from a thread of its own: for the journal, and for hooks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from argosy.errors import ArgosyError
from argosy.events import say
from argosy.observe.change_recorder import ChangeRecorder
from argosy.observe.journal import Journal
from argosy.observe.progress import Progress, Speedometer
from argosy.protocol.asking import JobStatus

LOOK_EVERY = 1.0
# The last look must not hold up the end of a job for longer.
_LAST_LOOK = 2.0
# And after a failure there may be nobody to answer.
_LAST_LOOK_OF_FAILED = 0.5


class Source(Protocol):
    """Where a status comes from: the coordinator, or this process itself."""

    def ask(self, timeout: float) -> JobStatus | None:
        """How the job stands; None if nobody answers in time."""

    def close(self) -> None:
        """No more questions."""


class Watch:
    """Looks at a job every second while started; `open_source` is called in the thread that asks.

    `status_file`: where each status is left for others.
    """

    def __init__(
        self,
        open_source: Callable[[], Source],
        journal: Journal | None = None,
        status_file: Path | None = None,
    ) -> None:
        self.latest: Progress | None = None
        self._open_source = open_source
        self._journal = journal
        self._changes = None if journal is None else ChangeRecorder(journal)
        self._status_file = status_file
        self._speedometer = Speedometer()
        self._asking = threading.Condition()
        # Looks by number: which was asked for, which has begun, which is done.
        self._wanted = self._begun = self._done = 0
        self._ending = False
        self._complained = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look; once is enough."""
        if self._thread is None and not self._ending:
            self._thread = threading.Thread(target=self._run, name="argosy watch", daemon=True)
            self._thread.start()

    def look(self, patience: float = _LAST_LOOK) -> Progress | None:
        """Look now, and wait for it, for a moment; what is known then."""
        if self._thread is not None:
            with self._asking:
                wanted = self._wanted = self._begun + 1  # one that is under way may have seen less
                self._asking.notify_all()
                self._asking.wait_for(lambda: self._done >= wanted, patience)
        return self.latest

    def stop(self, *, failed: bool = False) -> None:
        """A last look, for which a job that has failed waits less, and no more."""
        if self._thread is None:
            self._ending = True
            return
        patience = _LAST_LOOK_OF_FAILED if failed else _LAST_LOOK
        began = time.monotonic()
        self.look(patience)
        with self._asking:
            self._ending = True
            self._asking.notify_all()
        self._thread.join(max(0.0, began + patience - time.monotonic()))
        self._thread = None

    def _run(self) -> None:
        source = self._open_source()
        try:
            while not self._ending:
                with self._asking:
                    self._begun += 1
                self._look(source)
                with self._asking:
                    self._done = self._begun
                    self._asking.notify_all()
                    self._asking.wait_for(lambda: self._ending or self._wanted > self._done, LOOK_EVERY)
        finally:
            source.close()

    def _look(self, source: Source) -> None:
        try:
            status = source.ask(LOOK_EVERY)
        except ArgosyError:  # an answer that is none; the next one may be
            status = None
        if status is None:
            return
        if self._status_file is not None:
            self._publish(status, self._status_file)
        before, now = self.latest, self._speedometer.read(status, time.time())
        self.latest = now
        if self._changes is not None and status.changes:
            self._changes.record(status.changes)
        if self._journal is not None and (before is None or _differs(before, now)):
            for event in now.events():
                self._journal.record("progress", **event)

    def _publish(self, status: JobStatus, path: Path) -> None:
        """For a launcher on this host that has no server to ask; it reads all of it or the one before."""
        try:
            fresh = path.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(status))
            fresh.replace(path)
        except FileNotFoundError:
            """The launcher has gone, and its folder with it."""
        except OSError as error:
            if not self._complained:
                self._complained = True
                say(f"cannot write {path}: {error.strerror}; the launcher shows no progress")


def _differs(before: Progress, now: Progress) -> bool:
    """A job that waits is told of once, and not every second."""
    return now.fresh or (before.step, before.waiting) != (now.step, now.waiting)
