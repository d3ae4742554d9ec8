"""The caller's side of the handshake with a server: hello over the network, then the shorter way if any.

A state machine around a channel, advanced by whoever waits: a worker waits for one server after the other,
a server looks at its handshakes between two messages (it must go on answering the hello of others).
"""

from __future__ import annotations

import os
import time
import uuid

from argosy.cluster.lease import Lease
from argosy.cluster.settings import NOTICE_EVERY
from argosy.cluster.spec import ClusterSpec, Task
from argosy.events import say
from argosy.protocol.header import Header
from argosy.protocol.joining import Hello, Welcome
from argosy.wire.channel import Channel
from argosy.wire.message import Message
from argosy.wire.zmq_channel import ZmqChannel


def connect(cluster: ClusterSpec, me: Task, to: Task, lease: Lease) -> ZmqChannel:
    """A channel from one task to another. Its name is new for each life of a process."""
    return ZmqChannel(cluster.address(to), f"{me}#{uuid.uuid4().hex}".encode(), lease=lease)


class CallerHandshake:
    """On the way to one server, known to people as `name`."""

    def __init__(self, channel: Channel, hello: Hello, name: str, use_lane: bool) -> None:
        self.channel = channel
        self.welcome: Welcome | None = None  # set when the way is found
        self._hello = hello
        self._name = name
        self._use_lane = use_lane
        self._tried = ""  # the shorter way that was taken last
        self._why_not = ""  # what is wrong with it
        self._network: Channel | None = None  # kept until the shorter way has proved itself
        self._say_hello()

    def advance(self, timeout: float) -> Message[Header] | None:
        """Take in one message; one that is not a welcome is the caller's."""
        self.channel.lost_for()  # takes note of a connection that was made anew
        if self.channel.renewals != self._renewals or time.monotonic() - self._said > NOTICE_EVERY:
            self._say_hello()  # the first one may have been lost with a connection; hello twice does no harm
        message = self.channel.receive(timeout)
        if message is None and self._network is not None and self.channel.lost_for():
            self._go_back("the server hung up")
        if message is None or not isinstance(message.header, Welcome):
            return message
        lane = message.header.lane
        # A process that was started again has another one.
        if self._use_lane and lane not in ("", self._tried) and self._shorten(lane):
            return None
        self.welcome = message.header
        if self._network is not None:
            self._network.close()
            self._network = None
        elif self._why_not:
            task, name, why = self._hello.task, self._name, self._why_not
            say(f"{task} reaches {name} over the network: no shared memory ({why})")
        return None

    def _shorten(self, lane: str) -> bool:
        """Try to go on over shared memory; the server's next welcome then comes that way."""
        from argosy.wire.unix_channel import UnixChannel

        self._tried = lane
        try:
            shorter = UnixChannel(lane)
        except OSError as error:
            self._why_not = os.strerror(error.errno or 0).lower()
            return False
        self._network, self.channel = self.channel, shorter
        self._say_hello()
        return True

    def _go_back(self, why: str) -> None:
        """The shorter way leads nowhere: say hello over the network again."""
        self._why_not = why
        self.channel.close()
        if self._network is not None:
            self.channel, self._network = self._network, None
            self._say_hello()

    def _say_hello(self) -> None:
        self._said, self._renewals = time.monotonic(), self.channel.renewals
        self.channel.send(self._hello)

    def close(self) -> None:
        """Hang up."""
        self.channel.close()
        if self._network is not None:
            self._network.close()
