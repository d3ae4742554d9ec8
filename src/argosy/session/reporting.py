"""What a session lets others see: its numbers, which go to the servers; its journal; its watch."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from argosy.cluster.settings import STATUS_FILE
from argosy.errors import ConfigError
from argosy.observe.journal import Journal
from argosy.observe.watch import Source, Watch
from argosy.protocol.asking import LONGEST_NAME, MOST_NUMBERS, JobStatus, WorkerStatus
from argosy.replica.exchange import NOTHING_LOGGED

if TYPE_CHECKING:
    from argosy.session.session import Session

# What was logged goes to the servers so often at most, in seconds.
SHARE_EVERY = 1.0


class Reporting:
    """One session's."""

    def __init__(self, session: Session, directory: Path | None) -> None:
        self._session = session
        chief = session.replica.is_chief
        self._journal = Journal(directory) if chief and directory is not None else None
        path = os.environ.get(STATUS_FILE, "")
        self._status_file = Path(path) if path and chief and not session.replica.has_servers else None
        self.watch = Watch(self._source, self._journal, self._status_file)
        self._shared: dict[str, Any] = {}
        self._shared_at = 0.0
        self._last = False

    def begin(self) -> None:
        """The session has begun."""
        if self._journal is not None:
            session = self._session
            self.record(
                "started",
                step=session.global_step,
                last_step=session.last_step,
                mode=str(session.replica.mode),
                workers=session.replica.count,
                task=session.replica.task,
            )
        if self._journal is not None or self._status_file is not None:
            self.watch.start()

    def end(self, error: BaseException | None) -> None:
        """The session is over: the last numbers, before the servers go."""
        self.watch.stop(failed=error is not None)
        step = self._session.global_step
        if error is None:
            self.record("ended", step=step)
        else:
            self.record("failed", step=step, task=self._session.replica.task, error=_describe(error))
        if self._journal is not None:
            self._journal.close()

    def record(self, kind: str, /, **fields: Any) -> None:
        """An event for the journal, if this is the chief and there is one."""
        if self._journal is not None:
            self._journal.record(kind, **fields)

    def due(self) -> tuple[dict[str, float], int]:
        """What was logged, and when, if the servers have not heard of it for a while: asked at each push."""
        step, logged = self._session.noted
        if not logged or logged is self._shared:
            return NOTHING_LOGGED
        now = time.monotonic()
        if now - self._shared_at < SHARE_EVERY and not self._last:
            return NOTHING_LOGGED
        self._shared, self._shared_at = logged, now
        return _numbers(logged), step

    def share_last(self) -> None:
        """The next push may be the last: it takes along what there is."""
        self._last = True

    def _source(self) -> Source:
        return self._session.replica.inquire() or _Self(self._session)


class _Self:
    """Where there are no servers to ask: what this replica knows. All of a ring have a part in every step."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ask(self, timeout: float) -> JobStatus:
        session = self._session
        logged_at, logged = session.noted
        step = session.global_step
        mine, mode = session.replica.index, str(session.replica.mode)
        numbers = _numbers(logged)
        workers = tuple(
            WorkerStatus(
                f"/job:worker/task:{index}",
                "in the job",
                step,
                numbers=numbers if index == mine else {},
                logged=logged_at if index == mine else 0,
            )
            for index in range(session.replica.count)
        )
        return JobStatus(step, time.monotonic(), mode, session.last_step, workers=workers)

    def close(self) -> None:
        """See `Source`."""


def _numbers(logged: Mapping[str, Any]) -> dict[str, float]:
    """So many as travel."""
    return {name[:LONGEST_NAME]: number(name, logged[name]) for name in list(logged)[:MOST_NUMBERS]}


def number(name: str, value: Any) -> float:
    """The value of something logged; detached first, as torch warns of a loss that is made a number."""
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        what = f"a tensor of {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise ConfigError(f"session.log({name}=...)", "a number", what) from None


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
