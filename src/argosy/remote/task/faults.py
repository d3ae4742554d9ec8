"""The errors of one session: each has a number, and is kept until the client has reported it.

An error is kept with the values that depend on it, and here. A client that asks for such a value gets it; the
first of those that no one asked for is sent at the end. Any thread of the session may add one.
"""

from __future__ import annotations

import threading
import traceback

from argosy.protocol.remote_work import Fault

# This many are kept; beyond that, only the latest.
_MOST = 1000


class Faults:
    """The errors that the client has not reported yet."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._lock = threading.Lock()
        self._made = 0
        self._unseen: dict[int, Fault] = {}
        self._latest: Fault | None = None

    def add(self, operation: str, site: int, error: Exception) -> Fault:
        """Keep an exception, in the form that is sent to the client."""
        trace = "".join(traceback.format_exception(error))
        with self._lock:
            number, self._made = self._made, self._made + 1
            fault = Fault(self._task, operation, site, type(error).__name__, str(error), trace, number=number)
            if len(self._unseen) < _MOST:
                self._unseen[number] = fault
            else:
                self._latest = fault
            return fault

    def mark_seen(self, number: int) -> None:
        """The client has reported this one."""
        with self._lock:
            self._unseen.pop(number, None)
            if self._latest is not None and self._latest.number == number:
                self._latest = None

    def first(self) -> Fault | None:
        """The first that the client has not reported."""
        with self._lock:
            return next(iter(self._unseen.values()), self._latest)
