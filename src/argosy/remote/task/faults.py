"""The errors of one session: each has a number, and is kept until the client says that it has seen it.

An error is with the values that depend on it, and here. Who asks for such a value is told of it; what nobody
has asked for by the end is told then, from here. Any thread of the session may add.
"""

from __future__ import annotations

import threading
import traceback

from argosy.protocol.remote_work import Fault

# So many are kept. Of more than that nobody has asked for any: the latest stands for the rest.
_MOST = 1000


class Faults:
    """What went wrong and was not seen yet."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._lock = threading.Lock()
        self._made = 0
        self._unseen: dict[int, Fault] = {}
        self._latest: Fault | None = None

    def add(self, operation: str, site: int, error: Exception) -> Fault:
        """What the client will be told of an exception."""
        trace = "".join(traceback.format_exception(error))
        with self._lock:
            number, self._made = self._made, self._made + 1
            fault = Fault(self._task, operation, site, type(error).__name__, str(error), trace, number=number)
            if len(self._unseen) < _MOST:
                self._unseen[number] = fault
            else:
                self._latest = fault
            return fault

    def see(self, number: int) -> None:
        """The client has been told of this one."""
        with self._lock:
            self._unseen.pop(number, None)
            if self._latest is not None and self._latest.number == number:
                self._latest = None

    def first(self) -> Fault | None:
        """The first that the client has not seen."""
        with self._lock:
            return next(iter(self._unseen.values()), self._latest)
