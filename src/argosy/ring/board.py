"""The board: who has come how far, in numbers that the processes of one host share.

Each rank posts how many chunks it has entered, reduced and published, and shows whether it has left or failed
and which call it makes. Who posts the number that a sleeper waits for rings that sleeper's bell. A rank that
waits looks for a moment, if there is a core for it, and then sleeps. A peer's death is known by its pidfd.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence

from argosy.errors import ArgosyError, JobFailed, TaskLost, WaitTimeout
from argosy.events import say_waiting
from argosy.shared_memory.bells import hear
from argosy.shared_memory.counters import ENDS_AT, NEVER, SPACE, WIDTH, Counters
from argosy.shared_memory.passing import close_all

# What a rank posts, and what else is in its row.
ENTERED, REDUCED, PUBLISHED = 0, 1, 2
_CALL = 4  # of two calls in turn: the next one begins while a slow rank still looks at this one
_FAILED = 9
_TEXT = SPACE  # the reason of a failure, or a call in words
_TEXT_BYTES = 8 * (WIDTH - SPACE)
# Why a rank has failed: by itself, or because another one did.
_IS_CAUSE, _RELAYS = 1, 2
_LATE = "is it still at work, or did it make fewer calls than this rank?"
_NOTICE_EVERY = 5.0
# A bell that was not heard, which should not happen, costs so many milliseconds and not the whole wait.
_NAP = 100
# Looking longer than this costs others more than a sleep costs us, in seconds. The core of a virtual machine
# wakes up slowly once it sleeps: with a fifth of this, steps of the MNIST network took about 5 % longer.
_LOOK = 1e-3


class Board(Counters):
    """One rank's view of the shared numbers. One thread at a time may use it.

    `may_leave`: whether the others go on without a rank that leaves; else that is an error.
    """

    def __init__(
        self,
        words: memoryview,
        rank: int,
        names: Sequence[str],
        bells: Sequence[int],
        lives: Sequence[int],
        timeout: float,
        may_leave: bool = False,
    ) -> None:
        super().__init__(words, rank, bells, may_leave)
        self.rank = rank
        self.size = len(names)
        self.names = names
        self._all_lives = lives
        self._lives = {life: peer for peer, life in enumerate(lives) if peer != rank}
        self._timeout = timeout
        self._closed = False
        self._heard = False  # of a peer's failure, so that a failure of ours is only its consequence
        self._bell = bells[rank]
        self._poll = select.poll()
        for descriptor in (self._bell, *self._lives):
            self._poll.register(descriptor, select.POLLIN)
        # Where there are fewer cores than ranks, whoever looks takes the core of whom it waits for.
        self._look = _LOOK if len(os.sched_getaffinity(0)) >= self.size else 0.0

    # --- telling ------------------------------------------------------------------------------------------
    def leave(self) -> None:
        """This rank enters no further chunk."""
        if not self.seen(self.rank, _FAILED):  # else the others must not go on without it: they hear why
            self.publish(ENDS_AT, self.posted[ENTERED])

    def fail(self, reason: str) -> None:
        """This rank has failed: the others hear why."""
        if self._closed or self.seen(self.rank, _FAILED) or self.has_left(self.rank):
            return
        self.write(reason)
        self.publish(_FAILED, _RELAYS if self._heard else _IS_CAUSE)

    def sign(self, turn: int, word: int) -> None:
        """Show which call this rank makes, before it enters the first chunk of it."""
        self._words[self._mine + _CALL + turn % 2] = word

    def write(self, text: str) -> None:
        """Show a text to the others, in place of the last one, with what is posted or published next."""
        begin = 8 * (self._mine + _TEXT)
        text_bytes = text.encode()[:_TEXT_BYTES]
        self._words.cast("B")[begin : begin + _TEXT_BYTES] = text_bytes.ljust(_TEXT_BYTES, b"\0")

    # --- looking ------------------------------------------------------------------------------------------
    def has_left(self, rank: int) -> bool:
        """Whether a rank has said that it leaves."""
        return self.seen(rank, ENDS_AT) != NEVER

    def agree(self, turn: int, word: int) -> bool:
        """Whether all ranks make that call, once all have entered its first chunk."""
        words, place = self._words, _CALL + turn % 2
        for line in self._lines:  # noqa: SIM110  (a generator takes twice as long)
            if words[line + place] != word:
                return False
        return True

    def read(self, rank: int) -> str:
        """The text that a rank shows."""
        begin = 8 * (self._lines[rank] + _TEXT)
        raw = bytes(self._words.cast("B")[begin : begin + _TEXT_BYTES])
        return raw.rstrip(b"\0").decode(errors="replace")

    def reached(self, kind: int, number: int) -> bool:
        """Whether every rank that takes part has come so far."""
        return self.behind(kind, number, self.rank) is None

    # --- waiting ------------------------------------------------------------------------------------------
    def wait(self, kind: int, number: int) -> None:
        """Until every rank that takes part has posted that number of a kind."""
        until = time.perf_counter() + self._look
        while self.behind(kind, number, self.rank) is not None:
            if time.perf_counter() >= until:
                self._sleep(kind, number)
                return
            os.sched_yield()

    def _sleep(self, kind: int, number: int) -> None:
        began = time.monotonic()
        notice = began + _NOTICE_EVERY
        self.fall_asleep(kind, number)
        try:
            while (missing := self.behind(kind, number, self.rank)) is not None:
                ready = self._poll.poll(_NAP)
                gone = self.has_left(missing)
                if self.behind(kind, number, self.rank) != missing:
                    continue
                failure = self._failure(ready)
                if self.behind(kind, number, self.rank) is None:
                    continue  # what is waited for came before that
                if failure is not None:
                    self._heard = True
                    raise failure
                if gone:
                    raise TaskLost(self.names[missing], "it has left the ring while other ranks wait for it")
                now = time.monotonic()
                if now > notice:
                    notice = now + _NOTICE_EVERY
                    say_waiting(self.names[missing], now - began)
                if now - began > self._timeout:
                    raise WaitTimeout(
                        "the ring makes no progress: timeout", [self.names[missing]], now - began, _LATE
                    )
        finally:
            self.wake_up()

    def _failure(self, ready: Sequence[tuple[int, int]]) -> ArgosyError | None:
        """Who has died or failed, if anybody has."""
        for descriptor, _ in ready:
            if descriptor == self._bell:
                hear(descriptor)
                continue
            peer = self._lives[descriptor]
            if not self.has_left(peer) and not self.seen(peer, _FAILED):
                return TaskLost(self.names[peer], "its process has ended without leaving the ring")
            self._poll.unregister(descriptor)  # it ended as it should: there is no more to hear of it
        for what in (_IS_CAUSE, _RELAYS):
            for peer in self._others:
                if self.seen(peer, _FAILED) == what:
                    return JobFailed(self.names[peer], self.read(peer))
        return None

    def close(self) -> None:
        """Let go of bells and lives."""
        if not self._closed:
            self._closed = True
            super().close()
            close_all(self._all_lives)
