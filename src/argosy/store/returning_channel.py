"""A worker's channel to a server that is started again when its process has died: the server is called anew.

To its user this is a connection that broke and was made anew (`renewals`). The new process knows the worker
by its life, and has its state; what was on its way is lost, and so is the memory that both had shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from argosy.protocol.frames import FrameSpec
from argosy.protocol.header import Header
from argosy.protocol.joining import HELLO_FIRST, Refused
from argosy.store.caller_handshake import CallerHandshake
from argosy.wire.channel import Channel
from argosy.wire.message import Message

if TYPE_CHECKING:
    import torch


class ReturningChannel:
    """Begins with a channel over which the server has said welcome.

    `call` says hello again: over the channel that it is given, or over a new one.
    """

    def __init__(self, channel: Channel, call: Callable[[Channel | None], CallerHandshake]) -> None:
        self._channel = channel
        self._call = call
        self._calling: CallerHandshake | None = None
        self._lost_since = 0.0  # while it is called
        self._earlier = 0  # renewals that are not those of the channel in use

    @property
    def in_place(self) -> bool:
        """See `Channel`."""
        return self._channel.in_place

    @property
    def renewals(self) -> int:
        """See `Channel`."""
        return self._earlier + self._channel.renewals

    def reserve(self, frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
        """See `Channel`."""
        return self._channel.reserve(frames)

    def send(self, header: Header, tensors: Sequence[torch.Tensor] = ()) -> None:
        """See `Channel`. While nobody is there it is lost, as with any connection that is made anew."""
        if self._calling is None:
            self._channel.send(header, tensors)

    def receive(self, timeout: float) -> Message[Header] | None:
        """See `Channel`."""
        if self._calling is not None:
            return self._go_on_calling(self._calling, timeout)
        message = self._channel.receive(0.0 if self._channel.hung_up else timeout)
        if message is None:
            if not self._channel.hung_up:
                return None
            message = self._channel.receive(0.0)  # its last words may come after the news of its end
            if message is None:
                self._begin_to_call(None)
        elif _asks_for_hello(message.header):  # a new process at the other end of a connection made anew
            self._begin_to_call(self._channel)
            return None
        return message

    def _begin_to_call(self, channel: Channel | None) -> None:
        self._lost_since = time.monotonic()
        self._calling = self._call(channel)

    def _go_on_calling(self, calling: CallerHandshake, timeout: float) -> Message[Header] | None:
        message = calling.advance(timeout)
        if message is not None:
            # What was sent before the hello is answered before it, each with the same.
            return None if _asks_for_hello(message.header) else message
        if calling.welcome is not None:
            self._take(calling.channel)
        return None

    def _take(self, channel: Channel) -> None:
        """The server is there again."""
        renewals = self.renewals + 1
        if channel is not self._channel:
            self._channel.close()
        self._channel, self._calling = channel, None
        self._earlier = renewals - channel.renewals

    @property
    def hung_up(self) -> bool:
        """See `Channel`. It may come back."""
        return self._calling is not None or self._channel.hung_up

    def lost_for(self) -> float:
        """See `Channel`."""
        if self._calling is not None:
            return max(time.monotonic() - self._lost_since, 1e-9)
        return self._channel.lost_for()

    def close(self) -> None:
        """See `Channel`."""
        if self._calling is not None:
            self._calling.close()
        self._channel.close()


def _asks_for_hello(header: Header) -> bool:
    return isinstance(header, Refused) and header.expected == HELLO_FIRST
