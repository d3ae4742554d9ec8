"""How far each process has come, in numbers that all processes see, and bells for those that wait.

The table has a row of 64-bit numbers for each process, which alone writes to it. Posted numbers only grow, so
nothing needs a lock. A process that sees a number also sees all that was written before it was published
(release, acquire). A process that publishes looks for sleepers afterwards, and a process that falls asleep
says so before it looks at the numbers again, so at least one of them sees the other. x86 keeps the first
order by itself; other processors need a fence for each. This has run on x86 only; for the others the tests
check it against a model.
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
_KINDS = 4  # that can be posted; what a sleeper waits for is one number, so that nobody reads half of it
NEVER = 2**62
# Processors that keep stores in the order of the program, and loads in theirs.
ORDERED = platform.machine() in ("x86_64", "AMD64", "i386", "i686", "s390x")


def fence(lock: threading.Lock) -> None:
    """Order all reads and writes before the call before all those after it, as other processes see them.

    Python has no fence, but it has locks. On x86, taking a lock is one. Elsewhere, earlier accesses may sink
    below the acquire and later ones rise above the release, so they can pass each other inside the lock. They
    cannot with two locks in turn, because an acquire does not pass an earlier release.
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
