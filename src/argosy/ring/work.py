"""What an asynchronous call gives back: a Work whose `wait()` raises, and a future that fails.

A `torch.futures.Future` keeps an exception as a value that only Python understands. C++ code, such as that of
DistributedDataParallel, needs an error of the future itself: a callback that raises makes one of it. The
exception stays here, as a cycle through a future could not be collected.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from threading import Event, Lock
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from argosy.errors import WaitTimeout
from argosy.torch_private import Future


class Modes(NamedTuple):
    """The caller's modes, for the callbacks of a future that run in another thread."""

    grad: bool
    inference: bool
    autocast: bool
    dtype: torch.dtype

    @classmethod
    def here(cls) -> Modes:
        """Those of this thread."""
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
        )

    def enter(self) -> ExitStack:
        """To be used by `with`."""
        stack = ExitStack()
        if self.inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(self.grad))
        if self.autocast:
            stack.enter_context(torch.autocast("cpu", self.dtype))
        return stack


class RingWork(dist.Work):
    """One call that a thread of the group runs; `name` and `others` are for messages.

    `lock`: held for a moment when it ends, and when its future is asked for; many can share one.
    """

    _for_all: Any = None  # the future for C++ too
    _modes: Modes | None = None
    _error: BaseException | None = None
    _finished = False

    def __init__(self, name: str, others: tuple[str, ...], lock: Lock) -> None:
        super().__init__()
        self.name = name
        self._others = others
        self._lock = lock
        self._future: Any = Future([])

    # --- the group's side ---------------------------------------------------------------------------------
    def finish(self, result: Any, error: BaseException | None) -> None:
        """It is done, or has failed; what waits for it goes on, and its callbacks run here."""
        self._error = error
        with self._lock:
            self._finished = True
        if self._modes is None:
            self._future.set_result(result)
        else:
            with self._modes.enter():
                self._future.set_result(result)

    # --- the caller's side --------------------------------------------------------------------------------
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until it is done; raises what went wrong."""
        if timeout is not None and timeout > timedelta(0):  # C++ says 0 or less for as long as it takes
            done = Event()
            self._future.add_done_callback(lambda _: done.set())
            if not done.wait(timeout.total_seconds()):
                what = f"{self.name} is not done: timeout"
                raise WaitTimeout(
                    what, self._others, timeout.total_seconds(), "at least one of these is late"
                )
        self._future.wait()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same."""
        self.wait()

    def get_future(self) -> Any:
        """A future of the tensors, which fails if the call does. Its callbacks run in this thread's modes."""
        with self._lock:
            if self._for_all is None:
                if self._finished:  # it may not be complete yet, but is about to be: callbacks will run here
                    self._future.wait()
                else:
                    self._modes = Modes.here()
                self._for_all = self._future.then(lambda _: self.result())
            return self._for_all

    def is_completed(self) -> bool:
        """Whether it is done or has failed."""
        return bool(self._future.done())

    def is_success(self) -> bool:
        """Whether it is done and has not failed."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """What went wrong, if something did."""
        return self._error

    def result(self) -> Any:
        """The tensors, once it is done."""
        self.wait()
        return self._future.value()
