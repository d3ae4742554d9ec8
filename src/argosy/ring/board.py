"""The board: who has come how far, in numbers that the processes of one host share.

Each rank writes only its own lines: how many chunks it has entered, reduced and published, whether it has
left, and whether it sleeps until all have come to some number. Who posts the number that a sleeper waits for
rings that sleeper's bell, an eventfd. A rank that waits looks for a moment, if there is a core for it, and
then sleeps. A peer's death is known by its pidfd. Numbers only grow, so nothing here needs a lock.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Sequence

from argosy.errors import ArgosyError, JobFailed, TaskLost, WaitTimeout
from argosy.events import say_waiting

# The first line of a rank: what it posts, and the call that it makes. The second: what concerns all chunks.
ENTERED, REDUCED, PUBLISHED = 0, 1, 2
_CALL = 4  # of two calls in turn: the next one begins while a slow rank still looks at this one
_LEFT_AT, _FAILED, _WANTED_KIND, _WANTED = 8, 9, 10, 11
_TEXT = 16  # the reason of a failure, or a call in words: 48 words of text
WORDS = 64
_TEXT_BYTES = 8 * (WORDS - _TEXT)
# Why a rank has failed: by itself, or because another one did.
_IS_CAUSE, _RELAYS = 1, 2
_NEVER = 2**62
_LATE = "is it still at work, or did it make fewer calls than this rank?"
_NOTICE_EVERY = 5.0
# A bell that was not heard, which should not happen, costs so many milliseconds and not the whole wait.
_NAP = 100
# Looking longer than this costs others more than a sleep costs us, in seconds. The core of a virtual machine
# wakes up slowly once it sleeps: with a fifth of this, steps of the MNIST network took about 5 % longer.
_LOOK = 1e-3


class Board:
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
        self.rank = rank
        self.size = len(names)
        self.posted = [0, 0, 0]
        self._words = words
        self.names = names
        self._bells = list(bells)
        self._descriptors = [*bells, *lives]
        self._lives = {life: peer for peer, life in enumerate(lives) if peer != rank}
        self._timeout = timeout
        self._may_leave = may_leave
        self._mine = rank * WORDS
        self._lines = [peer * WORDS for peer in range(self.size)]
        self._peers = [peer for peer in range(self.size) if peer != rank]
        self._fence = threading.Lock()
        self._closed = False
        self._heard = False  # of a peer's failure, so that a failure of ours is only its consequence
        self._poll = select.poll()
        self._poll.register(self._bells[rank], select.POLLIN)
        for life in self._lives:
            self._poll.register(life, select.POLLIN)
        # Where there are fewer cores than ranks, whoever looks takes the core of whom it waits for.
        self._look = _LOOK if len(os.sched_getaffinity(0)) >= self.size else 0.0

    @staticmethod
    def prepare(words: memoryview, size: int) -> None:
        """Set the numbers of a new board."""
        for rank in range(size):
            words[rank * WORDS + _LEFT_AT] = _NEVER

    # --- telling ------------------------------------------------------------------------------------------
    def post(self, kind: int, count: int = 1) -> int:
        """This rank is done with `count` more of a kind: the number that it has reached."""
        value = self.posted[kind] = self.posted[kind] + count
        self._words[self._mine + kind] = value
        self._ring()
        return value

    def leave(self) -> None:
        """This rank enters no further chunk."""
        if self._words[self._mine + _FAILED]:
            return  # the others must not go on without it: they hear why
        self._words[self._mine + _LEFT_AT] = self.posted[ENTERED]
        for peer in self._peers:
            self._wake(peer)

    def fail(self, reason: str) -> None:
        """This rank has failed: the others hear why."""
        if self._closed or self._words[self._mine + _FAILED] or self.has_left(self.rank):
            return
        self.write(reason)
        self._words[self._mine + _FAILED] = _RELAYS if self._heard else _IS_CAUSE
        for peer in self._peers:
            self._wake(peer)

    def sign(self, turn: int, word: int) -> None:
        """Show which call this rank makes, before it enters the first chunk of it."""
        self._words[self._mine + _CALL + turn % 2] = word

    def write(self, text: str) -> None:
        """Show a text to the others, in place of the last one."""
        begin = 8 * (self._mine + _TEXT)
        text_bytes = text.encode()[:_TEXT_BYTES]
        self._words.cast("B")[begin : begin + _TEXT_BYTES] = text_bytes.ljust(_TEXT_BYTES, b"\0")

    def _ring(self) -> None:
        """Wake those who sleep until what has just come true."""
        # What was posted must be seen before we look who sleeps, or both sides might miss each other.
        with self._fence:
            pass
        words = self._words
        for peer in self._peers:
            line = self._lines[peer]
            wanted = words[line + _WANTED]
            if wanted and self._missing(words[line + _WANTED_KIND], wanted, peer) is None:
                self._wake(peer)

    def _wake(self, peer: int) -> None:
        os.eventfd_write(self._bells[peer], 1)

    # --- looking ------------------------------------------------------------------------------------------
    def has_left(self, rank: int) -> bool:
        """Whether a rank has said that it leaves."""
        return self._words[self._lines[rank] + _LEFT_AT] != _NEVER

    def present(self, number: int) -> list[int]:
        """The ranks that take part in the chunk of that number, counted from 1; all of them agree."""
        return [rank for rank, line in enumerate(self._lines) if self._words[line + _LEFT_AT] >= number]

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
        return self._missing(kind, number, self.rank) is None

    def _missing(self, kind: int, number: int, waiter: int) -> int | None:
        words, forgives = self._words, self._may_leave
        for peer, line in enumerate(self._lines):
            if peer == waiter or words[line + kind] >= number:
                continue
            # A rank that left after so many chunks never enters the next one, and needs not be waited for.
            if not forgives or words[line + _LEFT_AT] >= number:
                return peer
        return None

    # --- waiting ------------------------------------------------------------------------------------------
    def wait(self, kind: int, number: int) -> None:
        """Until every rank that takes part has posted that number of a kind."""
        until = time.perf_counter() + self._look
        while self._missing(kind, number, self.rank) is not None:
            if time.perf_counter() >= until:
                self._sleep(kind, number)
                return
            os.sched_yield()

    def _sleep(self, kind: int, number: int) -> None:
        words, mine = self._words, self._mine
        began = time.monotonic()
        notice = began + _NOTICE_EVERY
        words[mine + _WANTED_KIND] = kind
        words[mine + _WANTED] = number
        try:
            with self._fence:  # as in `_ring`: be seen asleep before looking once more
                pass
            while (missing := self._missing(kind, number, self.rank)) is not None:
                ready = self._poll.poll(_NAP)
                gone = self.has_left(missing)
                if self._missing(kind, number, self.rank) != missing:
                    continue
                failure = self._failure(ready)
                if self._missing(kind, number, self.rank) is None:
                    continue  # what is waited for came before that
                if failure is not None:
                    self._heard = True
                    raise failure
                if gone:
                    raise TaskLost(self.names[missing], "it has left the ring, which waits for it")
                now = time.monotonic()
                if now > notice:
                    notice = now + _NOTICE_EVERY
                    say_waiting(self.names[missing], now - began)
                if now - began > self._timeout:
                    raise WaitTimeout(
                        "the ring stands still: timeout", [self.names[missing]], now - began, _LATE
                    )
        finally:
            words[mine + _WANTED] = 0

    def _failure(self, ready: Sequence[tuple[int, int]]) -> ArgosyError | None:
        """Who has died or failed, if anybody has."""
        for descriptor, _ in ready:
            if descriptor == self._bells[self.rank]:
                os.eventfd_read(descriptor)
                continue
            peer = self._lives[descriptor]
            if not self.has_left(peer) and not self._words[self._lines[peer] + _FAILED]:
                return TaskLost(self.names[peer], "its process has ended in the middle of the ring")
            self._poll.unregister(descriptor)  # it ended as it should: there is no more to hear of it
        for what in (_IS_CAUSE, _RELAYS):
            for peer in self._peers:
                if self._words[self._lines[peer] + _FAILED] == what:
                    return JobFailed(self.names[peer], self.read(peer))
        return None

    def close(self) -> None:
        """Let go of bells and lives."""
        if not self._closed:
            self._closed = True
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._words.release()
