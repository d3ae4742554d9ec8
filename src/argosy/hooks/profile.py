"""A trace of chosen steps, by torch's profiler."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from argosy.errors import ConfigError
from argosy.events import say
from argosy.session.hook import Hook
from argosy.session.session import Session


class Profile(Hook):
    """Writes a trace of these steps of one worker, for ui.perfetto.dev or chrome://tracing.

    `steps`: of this worker in this run, counted from 0, such as `range(20, 25)`; those that follow each other
    share a file. The first steps of a run are slower than the rest. `directory`: default is `profile` in the
    session's.
    """

    def __init__(
        self, steps: Iterable[int], directory: str | os.PathLike[str] | None = None, *, worker: int = 0
    ) -> None:
        self._steps = steps if isinstance(steps, range) else frozenset(steps)
        self._directory = None if directory is None else Path(directory)
        self._worker = worker
        self._profiler: Any = None

    def begin(self, session: Session) -> None:
        """Perhaps the first step is to be traced already."""
        if self._directory is None:
            if session.directory is None:
                raise ConfigError(
                    "Profile(directory)", "a folder for the traces", None, "or give the session a directory"
                )
            self._directory = session.directory / "profile"
        self._step = 0  # the one that comes next
        self._turn(session)

    def after_step(self, session: Session) -> None:
        """One more step is done."""
        self._step += 1
        self._turn(session)

    def end(self, session: Session) -> None:
        """Write what there is."""
        self._stop()

    def _turn(self, session: Session) -> None:
        wanted = session.replica.index == self._worker and self._step in self._steps
        if not wanted:
            self._stop()
        elif self._profiler is None:
            self._start()
        else:
            self._profiler.step()

    def _start(self) -> None:
        import torch.profiler

        self._first = self._step
        self._profiler = torch.profiler.profile()
        self._profiler.start()

    def _stop(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None or self._directory is None:
            return
        profiler.stop()
        self._directory.mkdir(parents=True, exist_ok=True)
        name = f"worker{self._worker}-steps{self._first}-{self._step - 1}.json"
        path = self._directory / name
        profiler.export_chrome_trace(str(path))
        if _is_whole(path):
            say(f"trace of steps {self._first} to {self._step - 1} is in {path}")
        else:
            say(f"cannot write the trace {path}: the file is incomplete; is the disk full?")


def _is_whole(path: Path) -> bool:
    """The profiler does not say whether all that it wrote is there."""
    try:
        msgspec.json.decode(path.read_bytes(), type=msgspec.Raw)
    except (OSError, msgspec.DecodeError):
        return False
    return True
