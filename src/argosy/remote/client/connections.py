"""A client's connections to all tasks, and the thread that reads replies: over the network, and, to tasks of
this host, over Unix sockets.

Any thread may send, under one lock, because a ZeroMQ socket takes one thread at a time. A thread that has
used a socket also reads at once what has come, because its descriptor reports changes only.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argosy.cluster.spec import Address
from argosy.errors import WireError
from argosy.events import say
from argosy.protocol.header import Header
from argosy.protocol.remote_work import Work
from argosy.remote.transport import same_host
from argosy.remote.transport.same_host import FROM_TASK, TO_TASK, SameHostReceiver, SameHostSender
from argosy.shared_memory.bells import hear, new_bell, ring
from argosy.torch_private import without_dispatch
from argosy.wire.message import Message
from argosy.wire.zmq_channel import ZmqChannel

# Seconds after which a batch leaves by itself.
_FLUSH_EVERY = 0.001
# Seconds without work after which the thread sleeps until it is woken.
_SLEEP_AFTER = 0.05


class PendingReply:
    """A reply that one thread waits for."""

    __slots__ = ("_lock", "message", "task")

    def __init__(self, task: str) -> None:
        self.task = task
        self.message: Message[Any] | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def put(self, message: Message[Any] | None) -> None:
        """Set the reply; None: it will never come."""
        self.message = message
        self._lock.release()

    def wait(self) -> None:
        """Wait for the reply."""
        self._lock.acquire()


class Connections:
    """The connections of one client."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._lock = threading.RLock()
        self._channels: dict[str, ZmqChannel] = {}
        self._closing = False
        self._wake = new_bell()
        self._poller = select.poll()
        self._poller.register(self._wake, select.POLLIN)
        self.asleep = False
        self._last_active = 0.0
        self.on_message: Callable[[str, Message[Header]], None] = lambda task, message: None
        self.on_loss: Callable[[str], None] = lambda task: None
        self.on_tick: Callable[[], bool] = lambda: False
        self._lost: set[str] = set()
        self._senders: dict[str, SameHostSender] = {}
        self._receivers: dict[int, tuple[str, SameHostReceiver]] = {}
        self._thread = threading.Thread(target=self._loop, name="argosy-client", daemon=True)
        self._thread.start()

    def open(self, task: str, address: Address) -> None:
        """Open a channel to a task; it connects as soon as the task is up."""
        with self._lock:
            channel = ZmqChannel(address, f"{self._identity}#{task}".encode())
            self._channels[task] = channel
            for descriptor in channel.descriptors():
                self._poller.register(descriptor, select.POLLIN)
        self.wake()

    def use_local_connection(self, task: str, address: Address) -> None:
        """If a task is on this host, send its work over a Unix socket from now on."""
        try:
            there = same_host.connect(address, TO_TASK, self._identity)
        except OSError:
            return
        try:
            back = same_host.connect(address, FROM_TASK, self._identity)
        except OSError:
            there.close()
            return
        # No limit on unread bytes: the task may wait for another task, whose work has not been sent yet.
        self._senders[task] = SameHostSender(there, same_host.wait_for_receiver, most=math.inf)
        self._receivers[back.fileno()] = (task, SameHostReceiver(back))
        self._poller.register(back.fileno(), select.POLLIN)

    def work(self, task: str, work: Work, frames: Sequence[torch.Tensor]) -> None:
        """Send work to a task, always over the same connection, so that it stays in order."""
        sender = self._senders.get(task)
        if sender is None:
            self.send(task, work, frames)
        elif task not in self._lost and not self._closing:
            with without_dispatch():
                sender.send(work, frames)

    def send(self, task: str, header: Header, frames: Sequence[torch.Tensor] = ()) -> None:
        """Send to a task; nothing happens if it is lost."""
        with self._lock:
            if task in self._lost or self._closing:
                return
            channel = self._channels[task]
            channel.send(header, frames)
            self._receive(task, channel)

    def rename(self, old: str, new: str) -> None:
        """The task at an address has told its name."""
        with self._lock:
            self._channels[new] = self._channels.pop(old)

    def wake_if_asleep(self) -> None:
        """Let the thread send the batches soon."""
        if self.asleep:
            self.wake()

    def wake(self) -> None:
        """Wake the thread."""
        ring(self._wake)

    def _loop(self) -> None:
        network = True
        while not self._closing:
            if network:
                with self._lock:
                    for task, channel in list(self._channels.items()):
                        if task not in self._lost:
                            self._receive(task, channel)
            now = time.monotonic()
            if self.on_tick():
                self._last_active = now
            self.asleep = now - self._last_active > _SLEEP_AFTER
            ready = self._poller.poll(None if self.asleep else _FLUSH_EVERY * 1000)
            network = not ready
            for descriptor, _ in ready:
                if descriptor == self._wake:
                    self._last_active = time.monotonic()
                    hear(self._wake)
                    network = True
                elif (found := self._receivers.get(descriptor)) is not None:
                    self._receive_local(*found)
                else:
                    network = True

    def _receive_local(self, task: str, receiver: SameHostReceiver) -> None:
        """Handle what has come over a Unix socket."""
        try:
            with without_dispatch():
                for message in receiver.take():
                    self.on_message(task, message)
            return
        except EOFError:
            pass  # the network channel reports the loss of a task
        except WireError as error:
            say(f"dropped a message from {task}: {error}")
        self._poller.unregister(receiver.fileno())
        del self._receivers[receiver.fileno()]
        receiver.close()

    def _receive(self, task: str, channel: ZmqChannel) -> None:
        """Handle what has come, and the loss of the task. Under the lock."""
        while True:
            try:
                with without_dispatch():  # this thread may be inside a device scope
                    message = channel.receive(0)
            except WireError as error:
                say(f"dropped a message from {task}: {error}")
                continue
            if message is None:
                break
            self.on_message(task, message)
        if channel.lost_for() > 0 and task not in self._lost:
            self._lost.add(task)
            for descriptor in channel.descriptors():
                self._poller.unregister(descriptor)
            self.on_loss(task)

    def close(self) -> None:
        """Deliver what was sent, for a moment at most, and close all connections."""
        self._closing = True
        self.wake()
        self._thread.join()
        for channel in self._channels.values():
            channel.close()
        for sender in self._senders.values():
            sender.close()
        for _, receiver in self._receivers.values():
            receiver.close()
        os.close(self._wake)
