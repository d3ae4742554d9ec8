"""Who came and went: the coordinator's memory of it, for `argosy status` and for whoever writes events.jsonl.

Every change has a number. Numbers only grow, also over the processes of the coordinator, so that whoever asks
now and then records each change once. Pure, but for the time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import msgspec

from argosy.cluster.spec import Task
from argosy.protocol.asking import MOST_CHANGES, Change, ChangeKind
from argosy.server.durable_memory import Memory

_SHOWN = 5


class ChangesValue(msgspec.Struct, array_like=True):
    """All of it, as plain data. `standing`: the latest change of each task; `lives`: of each other server."""

    latest: list[Change]
    standing: dict[str, ChangeKind]
    lives: dict[str, str]


class Changes:
    """Of one job, whose global step is `step()`: the latest changes, oldest first."""

    def __init__(self, step: Callable[[], int]) -> None:
        self._step = step
        self._changed = False  # since this was last kept
        self._latest: deque[Change] = deque(maxlen=MOST_CHANGES)
        self._standing: dict[str, ChangeKind] = {}
        self._lives: dict[str, str] = {}

    def keep(self, memory: Memory) -> None:
        """Put it into the memory, if it has changed; the caller commits it."""
        if self._changed:
            self._changed = False
            value = ChangesValue(list(self._latest), self._standing, self._lives)
            memory.put("changes", msgspec.msgpack.encode(value))

    def recall(self, memory: Memory) -> None:
        """Go on where the last process of the coordinator was."""
        if (kept := memory.get("changes")) is not None:
            value = msgspec.msgpack.decode(kept, type=ChangesValue)
            self._latest.extend(value.latest)
            self._standing, self._lives = value.standing, value.lives

    def latest(self) -> tuple[Change, ...]:
        """Those that are kept, in order."""
        return tuple(self._latest)

    # --- what happens -------------------------------------------------------------------------------------
    def arrive(self, worker: Task) -> None:
        """A new process is this worker: it joins, or takes the place of one that was lost."""
        if self._standing.get(str(worker), "left") == "left":
            self._note("joined", worker)
        else:
            self.come_back(worker)

    def come_back(self, task: Task) -> None:
        """A new process takes this task's place, maybe before anybody has seen that the last one had died."""
        self.lose(task)
        self._note("restarted", task)

    def lose(self, task: Task) -> None:
        """A task is gone; however often it is said, it is lost once."""
        if self._standing.get(str(task)) != "lost":
            self._note("lost", task)

    def leave(self, worker: Task) -> None:
        """A worker is done, or one that was lost is waited for no more."""
        self._note("left", worker)

    def meet(self, server: Task, life: str) -> None:
        """Another server has said hello; with another life than before it was started again meanwhile."""
        before = self._lives.get(str(server))
        if before != life:
            self._lives[str(server)] = life
            self._changed = True
            if before is not None:
                self.come_back(server)

    def _note(self, kind: ChangeKind, task: Task) -> None:
        self._changed = True
        self._standing[str(task)] = kind
        number = self._latest[-1].number + 1 if self._latest else 1
        # As exact as it is written down: a change is known again by its number and its time.
        self._latest.append(Change(number, kind, str(task), self._step(), round(time.time(), 3)))

    # --- for a person -------------------------------------------------------------------------------------
    def lines(self, now: float) -> list[str]:
        """The latest losses, and what became of them; `now` is the wall clock's time."""
        lost: list[str] = []
        for index, change in enumerate(self._latest):
            if change.kind == "lost":
                ago = max(0.0, now - change.time)
                text = f"{change.task} was lost at step {change.step}, {ago:.0f} s ago"
                lost.append(text + self._outcome(index, change.task))
        return lost[-_SHOWN:]

    def _outcome(self, index: int, task: str) -> str:
        later = (change for change in list(self._latest)[index + 1 :] if change.task == task)
        match next(later, None):
            case Change(kind="restarted" | "joined", step=step):
                return f"; back at step {step}"
            case Change(kind="left"):
                return "; not waited for any more"
        return ""
