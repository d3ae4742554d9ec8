"""What a worker says while it waits for an answer: for whom, every few seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence

from argosy.cluster.settings import NOTICE_EVERY
from argosy.events import say_waiting


class Wait:
    """One wait: when to ask for whom, and which of the servers do not even answer that."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._ask_at = began + NOTICE_EVERY
        self._answers_at = math.inf
        self._asked: set[int] = set()
        self._named: set[str] = set()

    @property
    def left(self) -> float:
        """The seconds until something is due, at most one."""
        due = min(self._ask_at, self._answers_at if self._asked else math.inf)
        return max(0.0, min(1.0, due - time.monotonic()))

    def asks(self, servers: Collection[int]) -> bool:
        """Whether it is time to ask these."""
        if (now := time.monotonic()) < self._ask_at:
            return False
        self._ask_at, self._answers_at = now + NOTICE_EVERY, now + NOTICE_EVERY / 5
        self._asked, self._named = set(servers), set()
        return True

    def answered(self, server: int) -> None:
        """A server has said something."""
        self._asked.discard(server)

    def name(self, who: str, seconds: float) -> None:
        """Say who is waited for, once each time."""
        if who not in self._named:
            self._named.add(who)
            say_waiting(who, seconds)

    def name_silent(self, names: Sequence[str]) -> None:
        """Say which of those asked do not answer."""
        if self._asked and (now := time.monotonic()) >= self._answers_at:
            for server in sorted(self._asked):
                self.name(names[server], now - self._began)
            self._asked.clear()
