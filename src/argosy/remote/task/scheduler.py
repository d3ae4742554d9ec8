"""Which operation may run when: a count of what each still waits for, and queues of those that wait no more.

An operation waits for the writer of each tensor that it reads, and a writer for the readers before it, so
that views and in-place operations mean what they mean in a program that runs line by line. Tensors that
share memory share a `Group`. One thread, the session's own, adds operations and runs the small ones as they
come; those that are known to take long may be taken by helpers meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from argosy.protocol.remote_work import Fault

if TYPE_CHECKING:
    from argosy.remote.task.resident_parameters import Mooring

# A tensor that is only ever read collects its readers; those that are done are cleared away at so many.
_MANY = 64


class Group:
    """Memory that several values may share: who writes to it, who has read since, and what went wrong
    with it.
    """

    __slots__ = ("fault", "mooring", "on_write", "readers", "writer")

    def __init__(self, writer: Step | None = None) -> None:
        self.writer = writer
        self.readers: list[Step] = []
        self.fault: Fault | None = None
        # To be done before it is written to; and the memory that it is sent from, if it lives there.
        self.on_write: Callable[[], object] | None = None
        self.mooring: Mooring | None = None

    def before_writing(self) -> None:
        """To be called before its memory is written to."""
        if self.on_write is not None:
            duty, self.on_write = self.on_write, None
            duty()


class Value:
    """A tensor that is there, or will be, or never will."""

    __slots__ = ("fault", "group", "maker", "tensor")

    def __init__(self, group: Group, maker: Step | None = None) -> None:
        self.tensor: Any = None
        self.group = group
        self.maker = maker  # of a view, not the writer of its memory
        self.fault: Fault | None = None


class Step:
    """One operation on its way. `run` does it; what it raises is its own business."""

    __slots__ = ("done", "heavy", "missing", "run", "sends", "urgent", "waiters")

    def __init__(self, run: Callable[[], None], heavy: bool = False) -> None:
        self.run = run
        self.heavy = heavy
        self.missing = 0
        self.done = False
        self.sends = False  # it reads until what it adds to has left for another task: finished only then
        self.urgent = False  # somebody waits for it outside: before others that are ready
        self.waiters: list[Step] = []

    def let_go(self) -> None:
        """It has run. Values know it still, as their maker or reader; they must not live as long as they
        do.
        """
        self.run = _nothing


def _nothing() -> None:
    pass


class Graph:
    """The operations of one client on one task."""

    def __init__(self, helpers: int) -> None:
        self._lock = threading.Lock()
        self._ready: deque[Step] = deque()
        self._heavy: deque[Step] = deque()
        self._wake = threading.Condition(self._lock)
        self._helpers: list[threading.Thread] = []
        self._most_helpers = helpers
        self._idle_helpers = 0
        self._closed = False
        self._failure: Exception | None = None
        self.unfinished = 0
        # Called when a step became ready through another thread, for the session's thread to look.
        self.on_ready: Callable[[], None] = lambda: None

    def add(
        self, step: Step, reads: Sequence[Value], writes: Sequence[Value], after: Sequence[Step] = ()
    ) -> bool:
        """Take a step in, that also waits for those of `after`; True: it waits for nothing, is to be run by
        the caller now, and is not kept.
        """
        with self._lock:
            missing = 0
            for before in after:
                if not before.done:
                    before.waiters.append(step)
                    missing += 1
            for value in reads:
                for maker in (value.maker, value.group.writer):
                    if maker is not None and not maker.done:
                        maker.waiters.append(step)
                        missing += 1
            for value in writes:
                for reader in value.group.readers:
                    if not reader.done and reader is not step:
                        reader.waiters.append(step)
                        missing += 1
            if not missing and not (step.heavy and self._most_helpers):
                for value in writes:
                    value.group.writer = None
                    value.group.readers = []
                return True
            step.missing = missing
            self.unfinished += 1
            for value in reads:
                readers = value.group.readers
                readers.append(step)
                if len(readers) > _MANY:
                    value.group.readers = [each for each in readers if not each.done]
            for value in writes:
                value.group.writer = step
                value.group.readers = []
            if not missing:
                self._push(step)
            return False

    def expect(self, step: Step) -> None:
        """A step that somebody else will finish: a tensor that comes from another task."""
        with self._lock:
            step.missing = 1
            self.unfinished += 1

    def finish(self, step: Step) -> None:
        """A step is done; those that waited for nothing else are ready."""
        step.let_go()
        with self._lock:
            step.done = True
            self.unfinished -= 1
            for waiter in step.waiters:
                waiter.missing -= 1
                if not waiter.missing:
                    self._push(waiter)
            step.waiters = []

    def _push(self, step: Step) -> None:
        if not (step.heavy and self._most_helpers):
            if step.urgent:
                self._ready.appendleft(step)
            else:
                self._ready.append(step)
            return
        self._heavy.append(step)
        if len(self._heavy) > 1 or self._ready:
            self._call_helper()

    def _call_helper(self) -> None:
        if self._idle_helpers:
            self._wake.notify()
        elif len(self._helpers) < self._most_helpers:
            helper = threading.Thread(target=self._help, name="argosy-helper", daemon=True)
            self._helpers.append(helper)
            helper.start()

    def take(self, only_small: bool = False) -> Step | None:
        """The next step that is ready: small ones first, as helpers take only the others. What a helper's
        step raised is raised here, as if it had been taken.
        """
        if self._failure is not None:
            raise self._failure
        with self._lock:
            if self._ready:
                if self._heavy:
                    self._call_helper()
                return self._ready.popleft()
            if not self._heavy or only_small:
                return None
            step = self._heavy.popleft()
            if self._heavy:
                self._call_helper()
            return step

    @property
    def has_helpers(self) -> bool:
        """Whether long steps may run side by side."""
        return self._most_helpers > 0

    @property
    def idle(self) -> bool:
        """Whether nothing is ready."""
        return not self._ready and not self._heavy

    def _help(self) -> None:
        prepare_thread()
        while True:
            with self._lock:
                while not self._heavy and not self._closed:
                    self._idle_helpers += 1
                    self._wake.wait()
                    self._idle_helpers -= 1
                if self._closed:
                    return
                step = self._heavy.popleft()
            try:
                step.run()
            except Exception as error:  # no operation's fault, which its values would hold: our own
                self._failure = error
            else:
                self.finish(step)
            self.on_ready()

    def close(self) -> None:
        """No more steps; helpers end when they have done what they do."""
        with self._lock:
            self._closed = True
            self._ready.clear()
            self._heavy.clear()
            self._wake.notify_all()
        for helper in self._helpers:
            helper.join()


def prepare_thread() -> None:
    """For a thread that runs what is sent: as many threads as the process was told, as others do not
    inherit it.
    """
    torch.set_num_threads(torch.get_num_threads())
