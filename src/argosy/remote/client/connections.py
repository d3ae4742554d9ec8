"""The sockets of a client, and the thread that waits for answers on all of them: one a task through the
network, and a short way to those of this machine.

Any thread may send. Under one lock, because a ZeroMQ socket has room for one thread at a time; who has used a
socket looks at once for what has come, as its descriptor tells of changes only.
"""

from __future__ import annotations

import math
import os
import select
import socket
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
from argosy.remote.transport.same_host import FROM_TASK, TO_TASK, Inlet, Lane, connect
from argosy.shared_memory.bells import hear, new_bell, ring
from argosy.torch_private import without_dispatch
from argosy.wire.message import Message
from argosy.wire.zmq_channel import ZmqChannel

# A batch that nobody waits for leaves after so long.
LINGER = 0.001
# Without work for so long, the thread sleeps until it is woken.
_RESTLESS = 0.05


class Answer:
    """A place for an answer that one thread waits for."""

    __slots__ = ("_lock", "message", "task")

    def __init__(self, task: str) -> None:
        self.task = task
        self.message: Message[Any] | None = None
        self._lock = threading.Lock()
        self._lock.acquire()

    def put(self, message: Message[Any] | None) -> None:
        """Here it is; None: it will never come."""
        self.message = message
        self._lock.release()

    def wait(self, seconds: float = -1) -> bool:
        """Whether it came in time."""
        return self._lock.acquire(timeout=seconds)


class Link:
    """All channels of a client."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._lock = threading.RLock()
        self._channels: dict[str, ZmqChannel] = {}
        self._closing = False
        self._wake = new_bell()
        self._poller = select.poll()
        self._poller.register(self._wake, select.POLLIN)
        self.asleep = False
        self._lively = 0.0
        self.on_message: Callable[[str, Message[Header]], None] = lambda task, message: None
        self.on_loss: Callable[[str], None] = lambda task: None
        self.on_tick: Callable[[], bool] = lambda: False
        self._lost: set[str] = set()
        self._lanes: dict[str, Lane] = {}
        self._inlets: dict[int, tuple[str, Inlet]] = {}
        self._thread = threading.Thread(target=self._loop, name="argosy-client", daemon=True)
        self._thread.start()

    def open(self, task: str, address: Address) -> None:
        """A channel to a task; it connects by itself when the task is there."""
        with self._lock:
            channel = ZmqChannel(address, f"{self._identity}#{task}".encode())
            self._channels[task] = channel
            for descriptor in channel.descriptors():
                self._poller.register(descriptor, select.POLLIN)
        self.rouse()

    def shorten(self, task: str, address: Address) -> None:
        """A task of this machine is told its work by the short way from now on."""
        try:
            there = connect(address, TO_TASK, self._identity)
        except OSError:
            return
        try:
            back = connect(address, FROM_TASK, self._identity)
        except OSError:
            there.close()
            return
        # Without a limit: the task may wait for another, whose work is still here.
        self._lanes[task] = Lane(there, _until_ready, most=math.inf)
        self._inlets[back.fileno()] = (task, Inlet(back))
        self._poller.register(back.fileno(), select.POLLIN)

    def work(self, task: str, work: Work, frames: Sequence[torch.Tensor]) -> None:
        """Send work to a task, always by the same way, so that it keeps its order."""
        lane = self._lanes.get(task)
        if lane is None:
            self.send(task, work, frames)
        elif task not in self._lost and not self._closing:
            with without_dispatch():
                lane.send(work, frames)

    def send(self, task: str, header: Header, frames: Sequence[torch.Tensor] = ()) -> None:
        """Send to a task; one that has gone is passed over."""
        with self._lock:
            if task in self._lost or self._closing:
                return
            channel = self._channels[task]
            channel.send(header, frames)
            self._look(task, channel)

    def rename(self, old: str, new: str) -> None:
        """The task at an address has said what it is called."""
        with self._lock:
            self._channels[new] = self._channels.pop(old)

    def stir(self) -> None:
        """There is something to send before long."""
        if self.asleep:
            self.rouse()

    def rouse(self) -> None:
        """Let the thread look at once."""
        ring(self._wake)

    def _loop(self) -> None:
        network = True
        while not self._closing:
            if network:
                with self._lock:
                    for task, channel in list(self._channels.items()):
                        if task not in self._lost:
                            self._look(task, channel)
            now = time.monotonic()
            if self.on_tick():
                self._lively = now
            self.asleep = now - self._lively > _RESTLESS
            ready = self._poller.poll(None if self.asleep else LINGER * 1000)
            network = not ready
            for descriptor, _ in ready:
                if descriptor == self._wake:
                    self._lively = time.monotonic()
                    hear(self._wake)
                    network = True
                elif (found := self._inlets.get(descriptor)) is not None:
                    self._hear(*found)
                else:
                    network = True

    def _hear(self, task: str, inlet: Inlet) -> None:
        """Take what has come by the short way."""
        try:
            with without_dispatch():
                for message in inlet.take():
                    self.on_message(task, message)
            return
        except EOFError:
            pass  # the network tells what has become of the task
        except WireError as error:
            say(f"from {task}, thrown away: {error}")
        self._poller.unregister(inlet.fileno())
        del self._inlets[inlet.fileno()]
        inlet.close()

    def _look(self, task: str, channel: ZmqChannel) -> None:
        """Take what has come, and notice what is lost. Under the lock."""
        while True:
            try:
                with without_dispatch():  # we may be in a thread with a scope
                    message = channel.receive(0)
            except WireError as error:
                say(f"from {task}, thrown away: {error}")
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
        """Deliver what was sent, for a moment at most, and hang up."""
        self._closing = True
        self.rouse()
        self._thread.join()
        for channel in self._channels.values():
            channel.close()
        for lane in self._lanes.values():
            lane.close()
        for _, inlet in self._inlets.values():
            inlet.close()
        os.close(self._wake)


def _until_ready(sock: socket.socket, to_send: bool) -> None:
    """Wait for a task to go on reading."""
    waiting = select.poll()
    waiting.register(sock, select.POLLOUT if to_send else select.POLLIN)
    waiting.poll(1000)
