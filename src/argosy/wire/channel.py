"""The two ends of a conversation. Every transport provides both, and one contract test holds for all.

A server has one `Listener`: its inbox. Everybody else, other servers included, holds a `Channel` to it.
Servers answer and never call: what goes back along a listener is an answer to whoever spoke.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from argosy.protocol.frames import FrameSpec
from argosy.protocol.header import Header
from argosy.wire.message import Message

if TYPE_CHECKING:
    import torch

Peer: TypeAlias = bytes


class Delivery(msgspec.Struct, frozen=True):
    """A message from a peer."""

    peer: Peer
    message: Message[Header]


class Departure(msgspec.Struct, frozen=True):
    """A peer's connection has ended. Unless this is `final`, it may come back: a broken connection is made
    anew.
    """

    peer: Peer
    final: bool = False  # its process has ended


class Garbage(msgspec.Struct, frozen=True):
    """A peer sent what is no message; it was thrown away."""

    peer: Peer
    reason: str


Arrival: TypeAlias = Delivery | Departure | Garbage


class Listener(Protocol):
    """A server's inbox."""

    def receive(self, timeout: float) -> Arrival | None:
        """The next arrival; None when `timeout` seconds passed without one."""

    def copies(self, peer: Peer) -> bool:
        """Whether `send` to this peer has copied the tensors when it returns."""

    def stands_still(self, peer: Peer) -> bool:
        """Whether a peer's process is known to be stopped, though its connection stands."""

    def send(self, peer: Peer, header: Header, tensors: Sequence[torch.Tensor] = ()) -> bool:
        """Answer a peer; one that has gone is passed over. Whether there is a connection to it.

        Where `copies` says no, the tensors' memory must stay as it is until the peer has it: give a copy
        that nobody writes to.
        """

    def close(self) -> None:
        """Deliver what was sent, for a moment at most, and free the address."""


class Channel(Protocol):
    """A client's way to one server."""

    @property
    def in_place(self) -> bool:
        """Whether the tensors of answers of one kind come to the same memory every time."""

    @property
    def renewals(self) -> int:
        """How often the connection broke and was made anew: each time, what was on its way may be lost."""

    def reserve(self, frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
        """Tensors to write to, from which sending costs least: a message's first ones, in this order."""

    def send(self, header: Header, tensors: Sequence[torch.Tensor] = ()) -> None:
        """Send; the tensors' memory must stay as it is until the server has answered."""

    def receive(self, timeout: float) -> Message[Header] | None:
        """The next answer; None if none came in `timeout` seconds, or when the connection was made anew."""

    def lost_for(self) -> float:
        """For how many seconds the server has been out of reach, though it was there; 0 while it is."""

    @property
    def hung_up(self) -> bool:
        """Whether the server's process is known to have ended."""

    def close(self) -> None:
        """Deliver what was sent, for a moment at most, and hang up."""
