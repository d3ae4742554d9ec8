"""A server's one inbox over both lanes: shared memory for its own host, ZeroMQ for everybody else."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from argosy.protocol.header import Header
from argosy.wire.channel import Arrival, Peer
from argosy.wire.unix_channel import UnixListener
from argosy.wire.zmq_channel import ZmqListener

if TYPE_CHECKING:
    import torch


class Inbox:
    """Both as one `Listener`; `lane` is the name by which processes of this host find the shorter way."""

    def __init__(self, network: ZmqListener, local: UnixListener) -> None:
        self._network = network
        self._local = local
        self.lane = local.name
        self._descriptors = network.descriptors()
        self._look = True  # whether the network may have something that its descriptors no longer tell of
        for descriptor in self._descriptors:
            local.epoll.register(descriptor, select.EPOLLIN)

    def receive(self, timeout: float) -> Arrival | None:
        deadline = time.monotonic() + timeout
        while True:
            # ZeroMQ's descriptors tell of changes only, and every use of the socket takes note of them: what
            # is there must be asked for after each use.
            if self._look:
                if (arrival := self._network.take()) is not None:
                    return arrival
                self._look = False
            left = max(0.0, deadline - time.monotonic())
            ready = self._local.epoll.poll(left, 1)
            if not ready:
                return None
            if ready[0][0] in self._descriptors:
                self._look = True
            elif (arrival := self._local.take(ready[0][0])) is not None:
                return arrival

    def copies(self, peer: Peer) -> bool:
        return self._local.knows(peer)

    def stands_still(self, peer: Peer) -> bool:
        return self._local.knows(peer) and self._local.stands_still(peer)

    def send(self, peer: Peer, header: Header, tensors: Sequence[torch.Tensor] = ()) -> bool:
        if self._local.knows(peer):
            return self._local.send(peer, header, tensors)
        self._look = True
        return self._network.send(peer, header, tensors)

    def close(self) -> None:
        self._local.close()
        self._network.close()
