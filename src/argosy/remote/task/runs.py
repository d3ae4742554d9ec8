"""A captured step while it runs: its values, and what a row of it has to send."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from argosy.protocol.remote_work import Fault, Item
from argosy.remote.task.scheduler import Value

if TYPE_CHECKING:
    from argosy.remote.task.client_session import Session
    from argosy.remote.task.value_exchange import Outgoing
    from argosy.remote.transport.same_host import Lane
    from argosy.remote.transport.send_buffers import Slot

# So much, in bytes, is sent before an operation that is not quick.
MUCH = 128 * 1024
# With so much to be sent already, it leaves before the next large tensor: the receiver can begin with it.
_PLENTY = 1024 * 1024

Frame = list[Any]
Call = Callable[[Frame, "Run"], None]


class Replay:
    """One turn of a captured step: its values, and what is wrong with some of them."""

    def __init__(self, session: Session, turn: int, frame: Frame, values: dict[int, Value]) -> None:
        self.session = session
        self.turn = turn
        self.frame = frame
        self.values = values  # of the slots that others know: from outside, or to be seen there
        self.faults: dict[int, Fault] = {}
        self.spoilt: dict[int, Fault] = {}  # memory that was to be written to


class Run:
    """One row of one replay, while it runs: what it has to send."""

    __slots__ = ("berths", "outgoing", "replay", "size")

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.outgoing: Outgoing = {}
        self.size = 0
        # Where things were made that are not sent yet, by the item that sends them.
        self.berths: dict[int, tuple[Lane, Slot]] = {}

    def post(self, task: str, sent: Item, frames: list[torch.Tensor]) -> None:
        """Something to send."""
        size = sum([frame.numel() for frame in frames])
        if self.size > _PLENTY and size > MUCH:
            self.flush()
        items, all_frames = self.outgoing.setdefault(task, ([], []))
        items.append(sent)
        all_frames += frames
        self.size += size

    def flush(self) -> None:
        """Send it."""
        if self.outgoing:
            outgoing, self.outgoing = self.outgoing, {}
            self.size = 0
            self.replay.session.mail.dispatch(outgoing)

    def close(self) -> None:
        """Send what is left; what was made for a message that could not be sent is given up."""
        self.flush()
        for lane, slot in self.berths.values():
            lane.give_up(slot)
