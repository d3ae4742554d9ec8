"""A session's connections on this host, to its client and to other tasks; its thread waits here for messages.

The server's thread adds new connections; the session's thread reads them when it has nothing else to do.
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
from argosy.remote.transport import same_host
from argosy.remote.transport.same_host import FROM_TASK, TO_TASK, SameHostReceiver, SameHostSender
from argosy.shared_memory.bells import hear, new_bell, ring

Frames = Sequence[torch.Tensor]


class LocalConnections:
    """The connections of one session to processes of this host."""

    def __init__(
        self,
        client: str,
        on_parcel: Callable[[Parcel, Frames], None],
        on_work: Callable[[list[Any], Frames], None],
        spin: float = 0.0,
    ) -> None:
        """`spin`: seconds to poll before sleeping."""
        self._client = client
        self._on_parcel = on_parcel
        self._on_work = on_work
        self._spin = spin
        self.to_client: SameHostSender | None = None
        self._thread: int = 0
        self._senders: dict[str, SameHostSender | None] = {}
        self._lock = threading.Lock()
        self._added: deque[socket.socket] = deque()
        self._receivers: dict[int, SameHostReceiver] = {}
        self._poller = select.poll()
        self._wake = new_bell()
        self._poller.register(self._wake, select.POLLIN)
        self._asleep = False
        self._closed = False

    def read_in_this_thread(self) -> None:
        """Call this first, in the thread that receives."""
        self._thread = threading.get_ident()

    # --- from any thread ----------------------------------------------------------------------------------
    def add(self, way: bytes, sock: socket.socket) -> None:
        """A task or the client has connected."""
        with self._lock:
            if self._closed or (way == FROM_TASK and self.to_client is not None):
                sock.close()
            elif way == FROM_TASK:
                self.to_client = SameHostSender(sock, self._while_full)
            else:
                self._added.append(sock)
        self.wake()

    def wake(self) -> None:
        """Wake the session's thread if it sleeps."""
        if self._asleep:
            with self._lock:
                if not self._closed:
                    ring(self._wake)

    def sender_to(self, task: str, address: Callable[[], Address]) -> SameHostSender | None:
        """The connection to a task; None if it is on another host."""
        try:
            return self._senders[task]
        except KeyError:
            pass
        with self._lock:
            if task not in self._senders and not self._closed:
                try:
                    sock = same_host.connect(address(), TO_TASK, self._client)
                    self._senders[task] = SameHostSender(sock, self._while_full)
                except OSError:
                    self._senders[task] = None
            return self._senders.get(task)

    def _while_full(self, sock: socket.socket, to_send: bool) -> None:
        """The receiver reads nothing at the moment, perhaps because it waits for this task to read."""
        if threading.get_ident() != self._thread:
            same_host.wait_for_receiver(sock, to_send)
            return
        self._poller.register(sock, select.POLLOUT if to_send else select.POLLIN)
        try:
            self._receive(1000)
        finally:
            self._poller.unregister(sock)

    # --- in the session's thread --------------------------------------------------------------------------
    def wait(self, has_work: Callable[[], bool]) -> None:
        """Wait until messages come, and handle them, or until `wake` is called."""
        if self._spin and self._came_while_spinning(has_work):
            return
        self._asleep = True
        # A thread that adds work looks at `_asleep` only afterwards: so one of the two sees the other.
        self._receive(0 if has_work() else None)

    def _came_while_spinning(self, has_work: Callable[[], bool]) -> bool:
        """Whether something came. To be woken takes nearly as long as a short segment, so polling pays."""
        until = time.perf_counter() + self._spin
        while not has_work():
            if self._poller.poll(0):
                self._receive(0)
                break
            if time.perf_counter() > until:
                return False
            os.sched_yield()
        return True

    def _receive(self, milliseconds: int | None) -> None:
        while self._added:
            receiver = SameHostReceiver(self._added.popleft())
            self._receivers[receiver.fileno()] = receiver
            self._poller.register(receiver, select.POLLIN)
        ready = self._poller.poll(milliseconds)
        self._asleep = False
        for descriptor, _ in ready:
            if descriptor == self._wake:
                hear(self._wake)
            elif (found := self._receivers.get(descriptor)) is not None:
                self._take(descriptor, found)

    def _take(self, descriptor: int, receiver: SameHostReceiver) -> None:
        try:
            for message in receiver.take():
                if isinstance(message.header, Parcel):
                    self._on_parcel(message.header, message.tensors)
                elif isinstance(message.header, Work):
                    self._on_work(message.header.records, message.tensors)
            return
        except EOFError:
            pass
        except WireError as error:
            say(f"a connection on this host is closed: {error}")
        self._poller.unregister(descriptor)
        self._receivers.pop(descriptor).close()

    def close(self) -> None:
        """Close all connections; in the session's thread."""
        with self._lock:
            self._closed = True
            os.close(self._wake)
        for each in (*self._receivers.values(), *self._added, *self._senders.values(), self.to_client):
            if each is not None:
                each.close()
        self._receivers.clear()
        self._added.clear()
        self._senders.clear()
