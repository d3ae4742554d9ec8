"""How collectives are run, in the order of the calls: in the caller's thread, or in one of the group's."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d
from torch.futures import Future

_work_of: Callable[[Any], Any] = getattr(_distributed_c10d, "_create_work_from_future")  # noqa: B009


class Runner:
    """Runs collectives in order: here, or in a thread that is started when it is first needed."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], Any, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending = 0
        done: Any = Future()
        done.set_result([])
        self._done = _work_of(done)  # of everything that was done when the call came back
        self._lock = threading.Lock()

    def run(self, work: Callable[[], None], result: Any, opts: Any) -> Any:
        """A torch Work for it."""
        if self._pending or getattr(opts, "asyncOp", True):
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="argosy-ring", daemon=True)
                self._thread.start()
            future: Any = Future()
            with self._lock:
                self._pending += 1
            self._queue.put((work, future, result))
            return _work_of(future)
        with torch.no_grad():
            work()
        return self._done

    def _loop(self) -> None:
        torch.set_grad_enabled(False)
        while (item := self._queue.get()) is not None:
            work, future, result = item
            error = None
            try:
                work()
            except Exception as raised:  # goes to whoever waits for the work
                error = raised
            with self._lock:
                self._pending -= 1
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
            del item, work, future, result, error

    def close(self, patience: float | None = None) -> bool:
        """Let what was asked for end, and the thread with it, in so many seconds; whether it did."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(patience)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True
