"""Ends a worker's training at a global step."""

from __future__ import annotations

from argosy.errors import ConfigError
from argosy.session.hook import Hook
from argosy.session.session import Session


class StopAtStep(Hook):
    """Stop once the job has made `last_step` updates.

    Each worker stops when it hears of that step; in asynchronous mode others may still add a gradient or two.
    `session(last_step=...)` is exact: the servers apply nothing beyond it.
    """

    ends_training = True

    def __init__(self, last_step: int) -> None:
        if last_step < 0:
            raise ConfigError("StopAtStep(last_step)", "a number of updates, 0 or more", last_step)
        self.last_step = last_step

    def begin(self, session: Session) -> None:
        """A training that was resumed may be there already."""
        self.after_step(session)

    def after_step(self, session: Session) -> None:
        """Stop if this is the step."""
        if session.global_step >= self.last_step:
            session.stop()
