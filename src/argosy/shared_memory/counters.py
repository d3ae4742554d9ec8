"""How far each process has come, in numbers that all of them see, and bells for those who wait.

A table of numbers of 64 bits, with a row for each process, which alone writes to it. They only grow, so
nothing here needs a lock. Who reads the numbers without a system call sees the memory in an order that is the
processor's matter:

- *Publish is release*: who sees a number sees all that was written before it was published, and no longer
  disturbs what was read before.
- *Read is acquire*: what is read after a number was seen is at least as new as the number.
- *Sleep and wake*: who publishes looks afterwards who sleeps, and who goes to sleep says so before it looks
  at the numbers once more. Of two such, at least one sees the other.

x86 keeps the first two by itself, and needs a fence for the third. Other processors (ARM, POWER, RISC-V) need
one for each; see `fence`. That was shown on paper only: there was none to try it on.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Sequence

from argosy.shared_memory.bells import ring

# Of a row: its first line has the numbers that are posted, and others of the owner's; the second what
# concerns all of them. From SPACE on it is the owner's.
WIDTH, SPACE = 64, 16
ENDS_AT = 8
_WANTED = 10
_KINDS = 4  # that can be posted. What a sleeper waits for is one number, so that nobody reads half of it
NEVER = 2**62
# Processors that make all stores, and all loads, visible in the order of the program.
ORDERED = platform.machine() in ("x86_64", "AMD64", "i386", "i686", "s390x")


def fence(lock: threading.Lock) -> None:
    """What comes before is seen by others before what follows is done.

    Python has no such thing, but a lock has. On x86 one is enough: to take it is a locked instruction. Other
    processors let what comes before sink below the acquire, and what follows rise above the release: they
    meet within the lock. Not so with two: the first release comes after all before it, the second acquire
    before all that follows, and an acquire does not pass an earlier release (ARM and RISC-V say so; POWER
    has `lwsync` in glibc's semaphores, which orders all but a store before a load: a bell may be missed).
    """
    with lock:
        pass
    if not ORDERED:
        with lock:
            pass


class Counters:
    """One process's view of the table. One thread at a time may use it.

    `bells`: of all processes, by row; they are closed with it. `may_end`: whether the others go on without a
    process that posts no more.
    """

    def __init__(self, words: memoryview, row: int, bells: Sequence[int], may_end: bool = False) -> None:
        self.posted = [0] * _KINDS
        self._words = words
        self._bells = list(bells)
        self._row = row
        self._mine = row * WIDTH
        self._lines = [other * WIDTH for other in range(len(self._bells))]
        self._others = [other for other in range(len(self._bells)) if other != row]
        self._may_end = may_end
        self._fence = threading.Lock()

    @staticmethod
    def prepare(words: memoryview, rows: int) -> None:
        """Set the numbers of a new table, before it is passed on."""
        for row in range(rows):
            words[row * WIDTH + ENDS_AT] = NEVER

    # --- publishing ---------------------------------------------------------------------------------------
    def post(self, kind: int, count: int = 1) -> int:
        """This process is done with `count` more of a kind: the number that it has reached."""
        value = self.posted[kind] = self.posted[kind] + count
        words = self._words
        if not ORDERED:
            fence(self._fence)
        words[self._mine + kind] = value
        fence(self._fence)
        for other in self._others:
            wanted = words[self._lines[other] + _WANTED]
            if wanted and self.behind(wanted % _KINDS, wanted // _KINDS, other) is None:
                ring(self._bells[other])
        return value

    def publish(self, column: int, value: int) -> None:
        """Show a number of our row, and wake everybody to look at it."""
        if not ORDERED:
            fence(self._fence)
        self._words[self._mine + column] = value
        for other in self._others:
            ring(self._bells[other])

    # --- reading ------------------------------------------------------------------------------------------
    def behind(self, kind: int, number: int, waiter: int) -> int | None:
        """A row that has not come so far, the waiter's aside; None: all have that are waited for."""
        words, may_end = self._words, self._may_end
        for row, line in enumerate(self._lines):
            if row == waiter or words[line + kind] >= number:
                continue
            # A row that ended with so many never comes to the next one, and needs not be waited for.
            if not may_end or words[line + ENDS_AT] >= number:
                return row
        if not ORDERED:
            fence(self._fence)
        return None

    def seen(self, row: int, column: int) -> int:
        """A number of a row."""
        value = self._words[row * WIDTH + column]
        if not ORDERED:
            fence(self._fence)
        return value

    def present(self, number: int) -> list[int]:
        """The rows that come to this number, counted from 1. All agree, once it was waited for."""
        return [row for row, line in enumerate(self._lines) if self._words[line + ENDS_AT] >= number]

    # --- sleeping -----------------------------------------------------------------------------------------
    def fall_asleep(self, kind: int, number: int) -> None:
        """Have our bell rung when all have come to this number. They may have by now: look once more."""
        self._words[self._mine + _WANTED] = number * _KINDS + kind
        fence(self._fence)

    def wake_up(self) -> None:
        """Have our bell rung no more."""
        self._words[self._mine + _WANTED] = 0

    def close(self) -> None:
        """Let go of the bells and the table."""
        for bell in self._bells:
            os.close(bell)
        self._words.release()
