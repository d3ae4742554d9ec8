"""Numbers on what goes over a link, so that nothing can be lost on the way unnoticed. Pure.

A link carries messages in one direction, in order; a connection that breaks takes some of the latest with
it. The sender numbers them from 1, and says from time to time how many there were, so that the loss of the
very last is noticed, too. What was missed is not sent again: whoever wants that keeps it at the sender's.
"""

from __future__ import annotations


class Outgoing:
    """The sender's count."""

    def __init__(self) -> None:
        self.sent = 0

    def next(self) -> int:
        """The number of the message that is about to leave."""
        self.sent += 1
        return self.sent


class Incoming:
    """The receiver's: `taken` messages came, each in its turn; `missed` is the first that did not, if any."""

    def __init__(self) -> None:
        self.taken = 0
        self.missed: int | None = None

    def take(self, number: int) -> bool:
        """Whether a message is the next; not if it came before, and never after one was missed."""
        if number == self.taken + 1 and self.missed is None:
            self.taken = number
            return True
        self.expect(number)
        return False

    def expect(self, sent: int) -> None:
        """The sender has sent so many by now, and all of them would have come before this word."""
        if sent > self.taken and self.missed is None:
            self.missed = self.taken + 1
