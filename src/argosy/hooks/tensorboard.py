"""Scalars for TensorBoard, from the chief and from the servers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from argosy.errors import ConfigError
from argosy.events import say
from argosy.observe.progress import Progress
from argosy.session.hook import Hook
from argosy.session.session import Session


class TensorBoard(Hook):
    """The chief writes what is logged, and what the servers count, every few seconds.

    The loss and whatever else is logged, steps/s, gradients/s in all and per worker, staleness, queue length,
    dropped gradients. `directory`: default is `tensorboard` in the session's.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None, *, seconds: float = 2.0) -> None:
        if not seconds > 0:
            raise ConfigError("TensorBoard(seconds)", "a number of seconds greater than 0", seconds)
        self._directory = None if directory is None else Path(directory)
        self._seconds = seconds
        self._writer: Any = None
        self._logged_at = -1

    def begin(self, session: Session) -> None:
        """Open the files; the chief only."""
        if not session.replica.is_chief:
            return
        directory = self._directory
        if directory is None and session.directory is not None:
            directory = session.directory / "tensorboard"
        if directory is None:
            raise ConfigError(
                "TensorBoard(directory)", "a folder for its files", None, "or give the session a directory"
            )
        self._writer = _writer(directory, session.global_step)
        self._written = time.monotonic()
        session.watch.start()

    def after_step(self, session: Session) -> None:
        """Write, if it is time."""
        if self._writer is None:
            return
        now = time.monotonic()
        if now - self._written >= self._seconds and (progress := session.watch.latest) is not None:
            self._written = now
            self._write(progress)

    def end(self, session: Session) -> None:
        """The last numbers, and close."""
        if self._writer is None:
            return
        if (progress := session.watch.look()) is not None:
            self._write(progress)
        with self._or_tell():  # the servers hear of the chief's last numbers with its last message
            self._add(session.numbers(), session.noted[0], time.time())
        self._close()

    def _write(self, progress: Progress) -> None:
        with self._or_tell():
            self._add(progress.logged, progress.logged_at, progress.time)
            for name, value in progress.scalars().items():
                self._writer.add_scalar(name, value, progress.step, walltime=progress.time)
            self._writer.flush()  # a training that fails later is not asked to close it

    def _add(self, numbers: Mapping[str, float], step: int, now: float) -> None:
        """What was logged at a step, once."""
        if self._writer is not None and step > self._logged_at:
            self._logged_at = step
            for name, value in numbers.items():
                self._writer.add_scalar(name, value, step, walltime=now)

    @contextmanager
    def _or_tell(self) -> Iterator[None]:
        """A disk that is full costs the summaries and not the training."""
        try:
            yield
        except OSError as error:
            say(f"cannot write {self._writer.log_dir}: {error.strerror}; no more summaries are written")
            self._close()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):  # it has been told of
                writer.close()


def _writer(directory: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "TensorBoard", "the package tensorboard", "none", "pip install 'argosy[tensorboard]'"
        ) from None
    # What an earlier run wrote beyond the step that this one resumes from is not shown.
    return SummaryWriter(str(directory), purge_step=step or None)
