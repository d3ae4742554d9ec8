"""Decides when work may run: counts what each item still waits for, and queues those that are ready.

An operation waits for the last writer of each tensor that it reads, and a writer also for the readers before
it, so that views and in-place operations mean what they mean in a program that runs line by line. Tensors
that share memory share a `Storage`. The session's thread adds work and runs the small items; helper threads
may take the heavy ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from argosy.protocol.remote_work import Fault

if TYPE_CHECKING:
    from argosy.remote.task.resident_parameters import ResidentTensor

# A storage that is only read collects its readers; beyond this number, those that are done are removed.
_MANY = 64


@dataclass(slots=True, eq=False)
class Storage:
    """Memory that several values may share: its last writer, the readers since, and the error of a failed
    write.
    """

    writer: WorkItem | None = None
    readers: list[WorkItem] = field(init=False, default_factory=list)
    fault: Fault | None = None
    on_write: Callable[[], object] | None = None  # what to do before the next write
    resident: ResidentTensor | None = None  # the send buffer in which it lives, if it does

    def before_writing(self) -> None:
        """Call this before its memory is written to."""
        if self.on_write is not None:
            on_write, self.on_write = self.on_write, None
            on_write()


@dataclass(slots=True, eq=False)
class Value:
    """A tensor: computed, still to be computed, or failed."""

    storage: Storage
    maker: WorkItem | None = None  # a view has a maker other than the writer of its storage
    tensor: Any = None
    fault: Fault | None = None


def _nothing() -> None:
    pass


@dataclass(slots=True, eq=False)
class WorkItem:
    """Work that was submitted: an operation, a segment or a message. `run` handles its own errors."""

    run: Callable[[], object] = _nothing
    heavy: bool = False
    missing: int = 0
    done: bool = False
    sends: bool = False  # it reads its tensors until its message has left, and is finished only then
    urgent: bool = False  # the client waits for it: it goes before others that are ready
    waiters: list[WorkItem] = field(init=False, default_factory=list)

    def release(self) -> None:
        """Free what `run` holds: values still refer to this item as their maker or reader."""
        self.run = _nothing


class Scheduler:
    """The work of one client on one task."""

    def __init__(self, helpers: int) -> None:
        self._lock = threading.Lock()
        self._ready: deque[WorkItem] = deque()
        self._heavy: deque[WorkItem] = deque()
        self._wake = threading.Condition(self._lock)
        self._helpers: list[threading.Thread] = []
        self._most_helpers = helpers
        self._idle_helpers = 0
        self._closed = False
        self._failure: Exception | None = None
        self.unfinished = 0
        # Called when another thread has made an item ready, to wake the session's thread.
        self.on_ready: Callable[[], None] = lambda: None

    def add(
        self, item: WorkItem, reads: Sequence[Value], writes: Sequence[Value], after: Sequence[WorkItem] = ()
    ) -> bool:
        """Add an item, which also waits for those of `after`. True: it waits for nothing; the caller runs it
        now, and the scheduler does not keep it.
        """
        with self._lock:
            missing = 0
            for before in after:
                if not before.done:
                    before.waiters.append(item)
                    missing += 1
            for value in reads:
                for maker in (value.maker, value.storage.writer):
                    if maker is not None and not maker.done:
                        maker.waiters.append(item)
                        missing += 1
            for value in writes:
                for reader in value.storage.readers:
                    if not reader.done and reader is not item:
                        reader.waiters.append(item)
                        missing += 1
            if not missing and not (item.heavy and self._most_helpers):
                for value in writes:
                    value.storage.writer = None
                    value.storage.readers = []
                return True
            item.missing = missing
            self.unfinished += 1
            for value in reads:
                readers = value.storage.readers
                readers.append(item)
                if len(readers) > _MANY:
                    value.storage.readers = [each for each in readers if not each.done]
            for value in writes:
                value.storage.writer = item
                value.storage.readers = []
            if not missing:
                self._push(item)
            return False

    def expect(self, item: WorkItem) -> None:
        """Add an item that another thread will finish: a tensor that comes from another task."""
        with self._lock:
            item.missing = 1
            self.unfinished += 1

    def finish(self, item: WorkItem) -> None:
        """An item is done; those that waited for nothing else become ready."""
        item.release()
        with self._lock:
            item.done = True
            self.unfinished -= 1
            for waiter in item.waiters:
                waiter.missing -= 1
                if not waiter.missing:
                    self._push(waiter)
            item.waiters = []

    def _push(self, item: WorkItem) -> None:
        if not (item.heavy and self._most_helpers):
            if item.urgent:
                self._ready.appendleft(item)
            else:
                self._ready.append(item)
            return
        self._heavy.append(item)
        if len(self._heavy) > 1 or self._ready:
            self._call_helper()

    def _call_helper(self) -> None:
        if self._idle_helpers:
            self._wake.notify()
        elif len(self._helpers) < self._most_helpers:
            helper = threading.Thread(target=self._help, name="argosy-helper", daemon=True)
            self._helpers.append(helper)
            helper.start()

    def take(self, only_small: bool = False) -> WorkItem | None:
        """The next item that is ready: small ones first, because helpers take only heavy ones. An error in a
        helper is raised here.
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
            item = self._heavy.popleft()
            if self._heavy:
                self._call_helper()
            return item

    @property
    def has_helpers(self) -> bool:
        """Whether heavy items may run side by side."""
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
                item = self._heavy.popleft()
            try:
                item.run()
            except Exception as error:  # not an operation's error, which its values hold: a bug
                self._failure = error
            else:
                self.finish(item)
            self.on_ready()

    def close(self) -> None:
        """Drop all work; waits until helpers have finished their items."""
        with self._lock:
            self._closed = True
            self._ready.clear()
            self._heavy.clear()
            self._wake.notify_all()
        for helper in self._helpers:
            helper.join()


def prepare_thread() -> None:
    """Call this in a thread that runs operations: it does not inherit the number of torch's threads."""
    torch.set_num_threads(torch.get_num_threads())
