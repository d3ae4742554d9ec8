"""A session's connections on this machine, to its client and other tasks, and the sleep of its thread until
something comes.

The host's thread hands connections over; the session's own thread reads them when it has nothing else to do.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argosy.cluster.spec import Address
from argosy.errors import WireError
from argosy.events import say
from argosy.protocol.remote_work import Parcel, Work
from argosy.remote.transport.same_host import FROM_TASK, TO_TASK, Inlet, Lane, connect
from argosy.shared_memory.bells import hear, new_bell, ring

Frames = Sequence[torch.Tensor]


class Neighbours:
    """What one session hears from and says to its neighbours."""

    def __init__(
        self,
        client: str,
        on_parcel: Callable[[Parcel, Frames], None],
        on_work: Callable[[list[Any], Frames], None],
        look: float = 0.0,
    ) -> None:
        """`look`: so many seconds are spent looking before sleeping."""
        self._client = client
        self._on_parcel = on_parcel
        self._on_work = on_work
        self._look = look
        self.to_client: Lane | None = None
        self._thread: int = 0
        self._lanes: dict[str, Lane | None] = {}
        self._lock = threading.Lock()
        self._adopted: deque[socket.socket] = deque()
        self._inlets: dict[int, Inlet] = {}
        self._poller = select.poll()
        self._wake = new_bell()
        self._poller.register(self._wake, select.POLLIN)
        self._asleep = False
        self._closed = False

    def begin(self) -> None:
        """The calling thread is the one that receives."""
        self._thread = threading.get_ident()

    # --- from any thread ----------------------------------------------------------------------------------
    def adopt(self, way: bytes, sock: socket.socket) -> None:
        """A neighbour has connected, or the client."""
        with self._lock:
            if self._closed or (way == FROM_TASK and self.to_client is not None):
                sock.close()
            elif way == FROM_TASK:
                self.to_client = Lane(sock, self._while_full)
            else:
                self._adopted.append(sock)
        self.rouse()

    def rouse(self) -> None:
        """Let the session's thread look, if it sleeps."""
        if self._asleep:
            with self._lock:
                if not self._closed:
                    ring(self._wake)

    def lane(self, task: str, address: Callable[[], Address]) -> Lane | None:
        """The way to a task of this machine; None: it is on another."""
        try:
            return self._lanes[task]
        except KeyError:
            pass
        with self._lock:
            if task not in self._lanes and not self._closed:
                try:
                    self._lanes[task] = Lane(connect(address(), TO_TASK, self._client), self._while_full)
                except OSError:
                    self._lanes[task] = None
            return self._lanes.get(task)

    def _while_full(self, sock: socket.socket, to_send: bool) -> None:
        """A neighbour takes nothing at the moment: perhaps as we do not take what it sends."""
        if threading.get_ident() != self._thread:
            waiting = select.poll()
            waiting.register(sock, select.POLLOUT if to_send else select.POLLIN)
            waiting.poll(1000)
            return
        self._poller.register(sock, select.POLLOUT if to_send else select.POLLIN)
        try:
            self._hear(1000)
        finally:
            self._poller.unregister(sock)

    # --- in the session's thread --------------------------------------------------------------------------
    def sleep(self, has_news: Callable[[], bool]) -> None:
        """Until something comes from a neighbour, which is taken in, or somebody calls `rouse`."""
        if self._look and self._looked(has_news):
            return
        self._asleep = True
        # Whoever brings news does so first and looks at `_asleep` then: one of us sees the other.
        self._hear(0 if has_news() else None)

    def _looked(self, has_news: Callable[[], bool]) -> bool:
        """Whether something came that soon. To be woken takes a good part of what a short row takes."""
        until = time.perf_counter() + self._look
        while not has_news():
            if self._poller.poll(0):
                self._hear(0)
                break
            if time.perf_counter() > until:
                return False
            os.sched_yield()
        return True

    def _hear(self, milliseconds: int | None) -> None:
        while self._adopted:
            inlet = Inlet(self._adopted.popleft())
            self._inlets[inlet.fileno()] = inlet
            self._poller.register(inlet, select.POLLIN)
        ready = self._poller.poll(milliseconds)
        self._asleep = False
        for descriptor, _ in ready:
            if descriptor == self._wake:
                hear(self._wake)
            elif (found := self._inlets.get(descriptor)) is not None:
                self._take(descriptor, found)

    def _take(self, descriptor: int, inlet: Inlet) -> None:
        try:
            for message in inlet.take():
                if isinstance(message.header, Parcel):
                    self._on_parcel(message.header, message.tensors)
                elif isinstance(message.header, Work):
                    self._on_work(message.header.records, message.tensors)
            return
        except EOFError:
            pass
        except WireError as error:
            say(f"a neighbour is cut off: {error}")
        self._poller.unregister(descriptor)
        self._inlets.pop(descriptor).close()

    def close(self) -> None:
        """Hang up on all; in the session's thread."""
        with self._lock:
            self._closed = True
            os.close(self._wake)
        for each in (*self._inlets.values(), *self._adopted, *self._lanes.values(), self.to_client):
            if each is not None:
                each.close()
        self._inlets.clear()
        self._adopted.clear()
        self._lanes.clear()
