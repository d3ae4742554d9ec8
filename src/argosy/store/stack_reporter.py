"""A thread of a worker that answers the coordinator's question what the worker is doing.

It has a connection of its own, and needs nothing of the script: a worker that is stuck answers, too.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from argosy.protocol.asking import LONGEST_STACKS, Stacks, StacksOffer, StacksRequest
from argosy.stacks import format_stacks
from argosy.wire.zmq_channel import ZmqChannel

_LOOK_EVERY = 5.0  # for a connection that was made anew, and for a coordinator that was
_LONGEST_END = 1.0


class StackReporter:
    """Runs from the start until `stop`."""

    def __init__(self, open_channel: Callable[[], ZmqChannel], offer: StacksOffer) -> None:
        self._open_channel = open_channel
        self._offer = offer
        self._wake, self._wakened = os.pipe()
        self._thread = threading.Thread(target=self._run, name="argosy stacks", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        channel = self._open_channel()
        try:
            channel.send(self._offer)
            renewals, offered = 0, time.monotonic()
            sources = [self._wake, *channel.descriptors()]
            # The descriptors tell of changes only, and every use of the channel takes note of them: so what
            # is there must be taken after each use, before they are waited for.
            used = True
            while self._wake not in select.select(sources, [], [], 0.0 if used else _LOOK_EVERY)[0]:
                used = False
                while (message := channel.receive(0.0)) is not None:
                    if isinstance(message.header, StacksRequest):
                        channel.send(Stacks(format_stacks()[:LONGEST_STACKS]))
                        used = True
                # A coordinator that came back may have heard this before it knew the worker.
                if channel.renewals != renewals or time.monotonic() - offered > _LOOK_EVERY:
                    renewals, offered = channel.renewals, time.monotonic()
                    channel.send(self._offer)
                    used = True
        finally:
            channel.close()

    def stop(self) -> None:
        """Answer no more."""
        if not self._thread.is_alive() and self._wake < 0:
            return
        os.write(self._wakened, b"x")
        self._thread.join(_LONGEST_END)
        for descriptor in (self._wake, self._wakened):
            os.close(descriptor)
        self._wake = -1
