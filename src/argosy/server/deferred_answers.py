"""A listener whose answers wait until what they tell of is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from argosy.protocol.header import Header
from argosy.wire.channel import Arrival, Listener, Peer

if TYPE_CHECKING:
    import torch


class DeferredAnswers:
    """In front of a `Listener`; `flush` sends. The tensors are sent as they are by then."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self._waiting: list[tuple[Peer, Header, Sequence[torch.Tensor]]] = []

    def receive(self, timeout: float) -> Arrival | None:
        """See `Listener`."""
        return self.listener.receive(timeout)

    def copies(self, peer: Peer) -> bool:
        """See `Listener`."""
        return self.listener.copies(peer)

    def stands_still(self, peer: Peer) -> bool:
        """See `Listener`."""
        return self.listener.stands_still(peer)

    def send(self, peer: Peer, header: Header, tensors: Sequence[torch.Tensor] = ()) -> bool:
        """See `Listener`; whether there is a connection is not known yet."""
        self._waiting.append((peer, header, tensors))
        return True

    def flush(self) -> None:
        """Send what waits."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for peer, header, tensors in waiting:
                self.listener.send(peer, header, tensors)

    def close(self) -> None:
        """See `Listener`."""
        self.flush()
        self.listener.close()
