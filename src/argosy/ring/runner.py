"""How collectives are run, in the order of the calls: in the caller's thread, or in one of the group's.

An error before a call has begun is told to the other ranks, whose call fails too, and the next one is in step
again. An error in the middle ends the group: whatever is called on it later fails with the same error.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from torch.futures import Future

from argosy.errors import ArgosyError
from argosy.ring.call_check import Disagreement
from argosy.ring.work import RingWork
from argosy.torch_private import inference_mode, work_of_future


class Told(Protocol):
    """Who tells the other ranks of an error."""

    @property
    def turns(self) -> int:
        """How many calls were begun."""

    def refuse(self, name: str, reason: str) -> None:
        """This rank cannot make the call that comes next."""

    def fail(self, reason: str) -> None:
        """This rank has failed in the middle of a call."""


class Runner:
    """Runs collectives in order: here, or in a thread that is started when it is first needed."""

    def __init__(self, told: Told, others: tuple[str, ...]) -> None:
        self._told = told
        self._others = others
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], RingWork, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending = 0
        self._before = 0  # the turns when the last call was begun
        self._broken: Exception | None = None
        done: Any = Future()
        done.set_result([])
        self._done = work_of_future(done)  # of everything that was done when the call came back
        self._lock = threading.Lock()

    def run(self, name: str, work: Callable[[], None], result: Any, opts: Any) -> Any:
        """A torch Work for it."""
        if self._pending or getattr(opts, "asyncOp", True):
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="argosy-ring", daemon=True)
                self._thread.start()
            promise = RingWork(name, self._others, self._lock)
            with self._lock:
                self._pending += 1
            self._queue.put((work, promise, result))
            return promise
        error = self._attempt(work)
        if error is not None:
            self._tell(name, error)
            raise error
        return self._done

    def _attempt(self, work: Callable[[], None]) -> BaseException | None:
        """What went wrong, if something did."""
        if self._broken is not None:
            return self._broken.with_traceback(None)
        self._before = self._told.turns
        try:
            with inference_mode(True):  # tensors can be written to, whichever mode they were made in
                work()
        except BaseException as error:
            return error
        return None

    def _tell(self, name: str, error: BaseException) -> None:
        """The other ranks hear of an error of this one."""
        if error is self._broken or isinstance(error, Disagreement):
            return  # they know
        try:
            if self._told.turns == self._before and isinstance(error, Exception):
                self._told.refuse(name, str(error))
                return
            self._told.fail(f"{type(error).__name__}: {error}")
        except Exception as failure:  # they cannot be told
            error = failure
        interrupted = f"{name} was interrupted ({type(error).__name__}); the process group is now unusable"
        self._broken = error if isinstance(error, Exception) else ArgosyError(interrupted)

    def _loop(self) -> None:
        while (item := self._queue.get()) is not None:
            work, promise, result = item
            error = self._attempt(work)
            if error is None:
                self._count_down()
                promise.finish(result, None)
            else:
                # Whoever waits for it hears first: to tell the others may take a while.
                promise.finish(None, error)
                self._tell(promise.name, error)
                self._count_down()
            del item, work, promise, result, error

    def _count_down(self) -> None:
        with self._lock:
            self._pending -= 1

    def close(self, patience: float | None = None) -> bool:
        """Let what was asked for end, and the thread with it, in so many seconds; whether it did."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(patience)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True
