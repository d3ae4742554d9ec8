"""Saving by the clock, or on any step that you like."""

from __future__ import annotations

import time

from argosy.errors import ConfigError
from argosy.session.hook import Hook
from argosy.session.session import Session


class SaveCheckpoint(Hook):
    """Asks for a checkpoint every `seconds`, or every `steps` updates; the session needs a directory.

    `session(save_every=..., save_seconds=...)` does the same without a hook.
    """

    def __init__(self, seconds: float | None = None, steps: int | None = None) -> None:
        if (seconds is None) == (steps is None):
            raise ConfigError("SaveCheckpoint", "either seconds or steps", f"{seconds} and {steps}")
        self._seconds = seconds
        self._steps = steps

    def begin(self, session: Session) -> None:
        """Count from here."""
        if session.directory is None:
            raise ConfigError("SaveCheckpoint", "a session with a directory", None, "session(directory=...)")
        self._saved_at = time.monotonic()
        self._saved_step = session.global_step

    def after_step(self, session: Session) -> None:
        """Ask, if it is time; the chief does."""
        if not session.replica.is_chief or not self._is_due(session.global_step):
            return
        self._saved_at = time.monotonic()
        self._saved_step = session.global_step
        session.save()

    def _is_due(self, step: int) -> bool:
        if self._steps is not None:
            return step - self._saved_step >= self._steps
        return self._seconds is not None and time.monotonic() - self._saved_at >= self._seconds
