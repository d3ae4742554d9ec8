"""SIGTERM and Ctrl-C in a task that saves: the first ends the job in good order, the second the process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from argosy.events import say

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While entered, the first signal calls `stop`, which says whether there is something to wait for.

    Only where the program has no handlers of its own, and only in the main thread.
    """

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop = stop
        self._previous: dict[int, Any] = {}
        self.received: int | None = None

    def enter(self) -> None:
        """Begin to listen."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self._previous[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        first, self.received = self.received is None, number
        if first and self._stop():
            name = signal.Signals(number).name
            say(f"{name}: stops after this step, and saves; press Ctrl-C again to stop at once")
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def leave(self) -> None:
        """As it was before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
