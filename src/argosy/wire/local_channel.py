"""Messages inside one process: the specification of a channel in its simplest form, and the tests' double.

Everything is encoded, copied and decoded as on the network, so nothing is shared by accident.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from argosy.errors import WireError
from argosy.protocol.frames import FrameSpec
from argosy.protocol.header import Header
from argosy.wire.channel import Arrival, Delivery, Departure, Garbage, Peer
from argosy.wire.message import Message, blank, decode, encode

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class LocalListener:
    """A `Listener` for clients in the same process."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[tuple[Peer, list[bytearray] | None]] = queue.SimpleQueue()
        self._channels: dict[Peer, LocalChannel] = {}

    def connect(self, identity: Peer) -> LocalChannel:
        """A channel to this listener; the last one of an identity is the one that counts."""
        channel = self._channels[identity] = LocalChannel(self, identity)
        return channel

    def receive(self, timeout: float) -> Arrival | None:
        if (item := _get(self._inbox, timeout)) is None:
            return None
        peer, parts = item
        if parts is None:
            return Departure(peer, final=True)
        try:
            return Delivery(peer, decode(parts))
        except WireError as error:
            return Garbage(peer, str(error))

    def deliver(self, peer: Peer, parts: Sequence[Any] | None) -> None:
        """Parts from a peer, as they are; None: it has hung up."""
        if parts is None:
            self._channels.pop(peer, None)
        self._inbox.put((peer, None if parts is None else [bytearray(part) for part in parts]))

    def copies(self, peer: Peer) -> bool:
        """See `Listener`. As on a network, whoever sends must give a copy: it may be in another dtype."""
        return False

    def stands_still(self, peer: Peer) -> bool:
        return False

    def send(self, peer: Peer, header: Header, tensors: Sequence[torch.Tensor] = ()) -> bool:
        if (channel := self._channels.get(peer)) is None:
            return False
        channel.outbox.put([bytearray(part) for part in encode(header, tensors)])
        return True

    def close(self) -> None:
        for channel in self._channels.values():
            channel.lost_since = time.monotonic()
        self._channels.clear()


class LocalChannel:
    """A `Channel` to a listener in the same process."""

    in_place = False
    renewals = 0

    def __init__(self, listener: LocalListener, identity: Peer) -> None:
        self._listener = listener
        self._identity = identity
        self.outbox: queue.SimpleQueue[list[bytearray]] = queue.SimpleQueue()
        self.lost_since: float | None = None

    def reserve(self, frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
        return blank(frames)

    def send(self, header: Header, tensors: Sequence[torch.Tensor] = ()) -> None:
        self._listener.deliver(self._identity, encode(header, tensors))

    def receive(self, timeout: float) -> Message[Header] | None:
        parts = _get(self.outbox, timeout)
        return None if parts is None else decode(parts)

    @property
    def hung_up(self) -> bool:
        return self.lost_since is not None

    def lost_for(self) -> float:
        return 0.0 if self.lost_since is None else time.monotonic() - self.lost_since

    def close(self) -> None:
        self._listener.deliver(self._identity, None)


def _get(source: queue.SimpleQueue[T], timeout: float) -> T | None:
    try:
        return source.get(timeout=max(0.0, timeout))
    except queue.Empty:
        return None
