"""A line about the training every so many steps, or seconds."""

from __future__ import annotations

import time

from argosy.errors import ConfigError
from argosy.events import say
from argosy.observe.lines import numbers_text, step_text
from argosy.session.hook import Hook
from argosy.session.session import Session


class LogSteps(Hook):
    """The chief says the global step, the numbers that were logged with it, and the speed.

    `every`: so many updates; `seconds`: so much time. The session then says no such line itself.
    """

    says_steps = True

    def __init__(self, every: int | None = None, *, seconds: float | None = None) -> None:
        if (every is None) == (seconds is None):
            raise ConfigError("LogSteps", "every=STEPS or seconds=S, one of them", f"{every} and {seconds}")
        if every is not None and every < 1:
            raise ConfigError("LogSteps(every)", "a number of updates, 1 or more", every)
        if seconds is not None and not seconds > 0:
            raise ConfigError("LogSteps(seconds)", "a number of seconds greater than 0", seconds)
        self._every = every
        self._seconds = seconds
        self._due: tuple[int, float] | None = None

    def begin(self, session: Session) -> None:
        """Count from here."""
        self._due = None
        self._time, self._step = time.monotonic(), session.global_step

    def after_step(self, session: Session) -> None:
        """Note that a line is due. What belongs to this step is logged after it, so the line comes later."""
        if not session.replica.is_chief:
            return
        now, step = time.monotonic(), session.global_step
        if self._seconds is not None and now - self._time < self._seconds:
            return
        # Others make steps too: this worker may never see the multiples of `every` themselves.
        if self._every is not None and step // self._every == self._step // self._every:
            return
        self._due = step, (step - self._step) / max(now - self._time, 1e-9)
        self._time, self._step = now, step

    def before_step(self, session: Session) -> None:
        """Say it, with what was logged since."""
        if self._due is not None:
            step, rate = self._due
            self._due = None
            numbers = numbers_text(session.numbers())
            say(f"{step_text(step, session.last_step)}{numbers}  {rate:6.1f} steps/s")

    def end(self, session: Session) -> None:
        """Leave no line unsaid."""
        self.before_step(session)
