"""When a job goes on and when it ends: `Supervisor.on(event, now)` returns what is to be done.

Pure: no processes, no clock. `launch.local` feeds it events and carries the decisions out, in order.
The way down is one ladder: wait, SIGTERM, wait, SIGKILL, wait, give up; events choose the rung to start from.
A task that a signal has ended is started again after a short pause, as long as it has restarts left.
"""

from __future__ import annotations

import enum
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from argosy.cluster.spec import Task
from argosy.launch.job_events import (
    Decision,
    Ended,
    Event,
    GiveUp,
    Interrupted,
    Restart,
    Say,
    SendSignal,
    Tell,
    Tick,
    signal_name,
)


@dataclass(frozen=True)
class Limits:
    """How long, in seconds: for others to end by themselves after a failure; for servers after the last
    worker; after the user's own signal, in which a job may save; after SIGTERM; after SIGKILL."""

    failure: float = 5.0
    servers: float = 30.0
    interrupt: float = 30.0
    terminate: float = 3.0
    kill: float = 5.0


@dataclass(frozen=True)
class Restarts:
    """How often each task is started again, and with how few workers the job goes on."""

    most: int = 0
    min_workers: int = 1


# In seconds, before a task is started again for the first time; it doubles with each restart, so many times.
_PAUSE = 0.2
_DOUBLINGS = 5


class _Rung(enum.Enum):
    """What happens at the deadline."""

    NOTHING = enum.auto()
    TERMINATE = enum.auto()
    KILL = enum.auto()
    GIVE_UP = enum.auto()


class Supervisor:
    """The state of a job: who runs, who failed and when, and the next deadline."""

    def __init__(
        self,
        tasks: Iterable[Task],
        limits: Limits | None = None,
        leader: str = "worker",
        survives: bool = True,
        restarts: Restarts | None = None,
    ) -> None:
        # The job whose tasks the others are there for.
        self._leader = leader
        self._survives = survives  # whether the others go on without a worker that was killed; not in a ring
        self._restarts = restarts or Restarts()
        self.running = set(tasks)
        self.failures: list[Ended] = []  # without those that a restart has made good
        self.survived: list[Ended] = []  # those of them that did not end the job
        self.interrupt: int | None = None
        self.given_up = False
        self._limits = limits or Limits()
        self._rung = _Rung.NOTHING
        self._rung_ends: float | None = None
        self._leaders = frozenset(task for task in self.running if task.job == leader)
        self._waiting: dict[Task, float] = {}  # to be started again, and when
        self._deaths: dict[Task, Ended] = {}  # the latest of each that was started again
        self._restarted: Counter[Task] = Counter()
        self._finished: set[Task] = set()
        self._signalled: set[Task] = set()
        self._failing = False

    @property
    def over(self) -> bool:
        """Whether nothing is left to wait for."""
        return not (self.running or self._waiting) or self.given_up

    @property
    def deadline(self) -> float | None:
        """When a `Tick` is due, if nothing happens before."""
        moments = [*self._waiting.values(), *([] if self._rung_ends is None else [self._rung_ends])]
        return min(moments, default=None)

    def may_restart(self, task: Task) -> bool:
        """Whether another process of this task may have to be started."""
        if self._failing or self.interrupt is not None or task in self._signalled:
            return False
        if self._is_too_late_for(task):
            return False
        left = self._restarted[task] < self._restarts.most
        return task in self._waiting or (task in self.running and left)

    def on(self, event: Event, now: float) -> list[Decision]:
        """Take note of `event`; what is to be done about it."""
        match event:
            case Ended():
                return self._on_end(event, now)
            case Interrupted(number):
                return self._on_interrupt(number, now)
            case Tick():
                return self._on_tick(now)

    def _on_end(self, ended: Ended, now: float) -> list[Decision]:
        restarts = ended.died and self.may_restart(ended.task)
        self.running.discard(ended.task)
        decisions: list[Decision] = []
        if ended.code == 0:
            decisions += self._finish(ended.task, now)
        elif restarts:
            decisions += self._plan_restart(ended, now)
        elif ended.task not in self._signalled:  # what we ended ourselves has not failed
            decisions += self._on_failure(ended, now)
        if self._rung is _Rung.NOTHING and not self.over and not self._workers():
            self._plan(_Rung.TERMINATE, now + self._limits.servers)
        return decisions

    def _finish(self, task: Task, now: float) -> list[Decision]:
        self._finished.add(task)
        late = [each for each in sorted(self._waiting) if self._is_too_late_for(each)]
        for each in late:
            del self._waiting[each]
        workers = [each for each in late if not self._serves(each)]
        return [decision for worker in workers for decision in self._on_failure(self._deaths[worker], now)]

    def _is_too_late_for(self, task: Task) -> bool:
        """Whether the job has ended well. Servers end when all is done, and whoever is started again then
        would wait for them.
        """
        serves = self._serves(task)
        if serves and self._leaders <= self._finished:
            return True
        return (serves or task in self._leaders) and any(map(self._serves, self._finished))

    def _plan_restart(self, ended: Ended, now: float) -> list[Decision]:
        task, most = ended.task, self._restarts.most
        pause = _PAUSE * 2 ** min(self._restarted[task], _DOUBLINGS)
        self._waiting[task] = now + pause
        self._deaths[task] = ended
        self._restarted[task] += 1
        return [Say(f"{_what(ended)}; it is started again ({self._restarted[task]} of {most})")]

    def _on_failure(self, ended: Ended, now: float) -> list[Decision]:
        what = _what(ended)
        if self._restarts.most and ended.died and not self._failing:
            if self._is_too_late_for(ended.task):
                if self._serves(ended.task):
                    return [Say(f"{what}; the workers have finished, and need it no more")]
                what += " when the job had ended; it is not started again"
            else:
                what += f", after {count(self._restarts.most, 'restart')}"
        self.failures.append(ended)
        if self._failing:
            return [Say(what)]
        if ended.died and self._can_do_without(ended.task):
            if len(self._left()) >= self._restarts.min_workers:
                return self._go_on_without(ended, what)
            if self._left():
                left, least = count(len(self._left()), "worker"), self._restarts.min_workers
                what += f"; {left} left of at least {least}"
        return self._fail(ended, what, now)

    def _go_on_without(self, ended: Ended, what: str) -> list[Decision]:
        self.survived.append(ended)
        said = Say(f"{what}; the others go on")
        gone = tuple(sorted(each.task for each in self.survived))
        return [said, GiveUp(gone)] if self._leader == "worker" else [said]

    def _fail(self, ended: Ended, what: str, now: float) -> list[Decision]:
        self._failing = True
        self._waiting.clear()
        self._plan(_Rung.TERMINATE, now + self._limits.failure)
        if not self.running:
            return [Say(what)]
        return [Say(f"{what}; the others have {self._limits.failure:.0f} s to end"), Tell(ended)]

    def _can_do_without(self, task: Task) -> bool:
        if self._leader != "worker":
            return self._serves(task)
        return self._survives and task.job == "worker"

    def _left(self) -> frozenset[Task]:
        """The workers, or the client, that the job goes on with or that have finished."""
        return self._leaders & (self.running | self._waiting.keys() | self._finished)

    def _on_interrupt(self, number: int, now: float) -> list[Decision]:
        if self.interrupt is not None:
            return self._kill(now)
        self.interrupt = number
        self._waiting.clear()
        if not self.running:
            return [Say(f"{signal_name(number)}: no task is running")]
        patience = f"{self._limits.interrupt:.0f} s to save and end; press Ctrl-C again to stop at once"
        return [
            Say(f"{signal_name(number)}: ending {count(len(self.running), 'task')}, with {patience}"),
            *self._terminate(now, self._limits.interrupt),
        ]

    def _on_tick(self, now: float) -> list[Decision]:
        due = sorted(task for task, moment in self._waiting.items() if now >= moment)
        for task in due:
            del self._waiting[task]
            self.running.add(task)
        return [*map(Restart, due), *self._descend(now)]

    def _descend(self, now: float) -> list[Decision]:
        """One rung down the ladder, if it is time."""
        if self._rung_ends is None or now < self._rung_ends:
            return []
        match self._rung:
            case _Rung.TERMINATE:
                late = [Say(f"still running, and ended now: {_names(self.running)}")]
                return [*(late if self._leader == "worker" else []), *self._terminate(now)]
            case _Rung.KILL:
                return self._kill(now)
            case _:
                self.given_up = True
                return [Say(f"cannot be killed: {_names(self.running)}")]

    def _terminate(self, now: float, patience: float | None = None) -> list[Decision]:
        self._plan(_Rung.KILL, now + (self._limits.terminate if patience is None else patience))
        return self._send(signal.SIGTERM)

    def _kill(self, now: float) -> list[Decision]:
        self._plan(_Rung.GIVE_UP, now + self._limits.kill)
        return self._send(signal.SIGKILL)

    def _send(self, number: int) -> list[Decision]:
        self._signalled |= self.running
        return [SendSignal(tuple(sorted(self.running)), number)]

    def _plan(self, rung: _Rung, deadline: float) -> None:
        self._rung = rung
        self._rung_ends = deadline

    def _serves(self, task: Task) -> bool:
        return task.job == "ps" if self._leader == "worker" else task.job != self._leader

    def _workers(self) -> list[Task]:
        """Who is not there for others: the servers end after them, by themselves."""
        return [task for task in self.running | self._waiting.keys() if not self._serves(task)]


def _what(ended: Ended) -> str:
    return f"{ended.task} {ended.how} (pid {ended.pid})"


def exit_status(code: int) -> int:
    """A return code as shells say it: 128+n for signal n."""
    return 128 - code if code < 0 else code


def _names(tasks: Iterable[Task]) -> str:
    return ", ".join(str(task) for task in sorted(tasks))


def count(number: int, noun: str) -> str:
    """1 task, 2 tasks."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
