"""When a job goes on and when it ends: `Supervisor.on(event, now)` returns what is to be done.

Pure: no processes, no clock. `launch.local` feeds it events and carries the decisions out, in order.
The way down is one ladder: wait, SIGTERM, wait, SIGKILL, wait, give up; events choose the rung to start from.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from argosy.cluster.spec import Task


@dataclass(frozen=True)
class Ended:
    """A task has ended: `code` as of the subprocess module, -n for signal n; `time` as of time.time()."""

    task: Task
    pid: int
    code: int
    time: float

    @property
    def died(self) -> bool:
        """Whether a signal ended it."""
        return self.code < 0

    @property
    def how(self) -> str:
        """In words."""
        return (
            f"was killed by {signal_name(-self.code)}" if self.died else f"failed with exit code {self.code}"
        )


@dataclass(frozen=True)
class Interrupted:
    """The launcher was told to end, by this signal."""

    number: int


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Ended | Interrupted | Tick


@dataclass(frozen=True)
class Say:
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class SendSignal:
    """Signal these tasks, and all that they started."""

    tasks: tuple[Task, ...]
    number: int


@dataclass(frozen=True)
class Tell:
    """Let every task know that this one has failed, and the job with it."""

    failure: Ended


Decision = Say | SendSignal | Tell


@dataclass(frozen=True)
class Limits:
    """How long, in seconds: for others to end by themselves after a failure; for servers after the last
    worker; after the user's own signal, in which a job may save; after SIGTERM; after SIGKILL."""

    failure: float = 5.0
    servers: float = 30.0
    interrupt: float = 30.0
    terminate: float = 3.0
    kill: float = 5.0


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
    ) -> None:
        # The job whose tasks the others are there for.
        self._leader = leader
        self._survives = survives  # whether the others go on without a worker that was killed; not in a ring
        self.running = set(tasks)
        self.failures: list[Ended] = []
        self.survived: list[Ended] = []  # those of them that did not end the job
        self.interrupt: int | None = None
        self.given_up = False
        self.deadline: float | None = None
        self._limits = limits or Limits()
        self._rung = _Rung.NOTHING
        self._signalled: set[Task] = set()
        self._worker_finished = False
        self._failing = False

    @property
    def over(self) -> bool:
        """Whether nothing is left to wait for."""
        return not self.running or self.given_up

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
        self.running.discard(ended.task)
        decisions: list[Decision] = []
        if ended.code == 0:
            self._worker_finished |= ended.task.job == self._leader
        elif ended.task not in self._signalled:  # what we ended ourselves has not failed
            self.failures.append(ended)
            decisions += self._on_failure(ended, now)
        if self._rung is _Rung.NOTHING and self.running and not self._workers():
            self._plan(_Rung.TERMINATE, now + self._limits.servers)
        return decisions

    def _on_failure(self, ended: Ended, now: float) -> list[Decision]:
        what = f"{ended.task} {ended.how} (pid {ended.pid})"
        if self._failing:
            return [Say(what)]
        if ended.died and self._can_do_without(ended.task) and (self._worker_finished or self._workers()):
            self.survived.append(ended)
            return [Say(f"{what}; the others go on")]
        self._failing = True
        self._plan(_Rung.TERMINATE, now + self._limits.failure)
        if not self.running:
            return [Say(what)]
        return [Say(f"{what}; the others have {self._limits.failure:.0f} s to end"), Tell(ended)]

    def _can_do_without(self, task: Task) -> bool:
        if self._leader != "worker":
            return self._serves(task)
        return self._survives and task.job == "worker"

    def _on_interrupt(self, number: int, now: float) -> list[Decision]:
        if self.interrupt is not None:
            return self._kill(now)
        self.interrupt = number
        patience = f"{self._limits.interrupt:.0f} s to save and end; press Ctrl-C again to stop at once"
        return [
            Say(f"{signal_name(number)}: ending {count(len(self.running), 'task')}, with {patience}"),
            *self._terminate(now, self._limits.interrupt),
        ]

    def _on_tick(self, now: float) -> list[Decision]:
        if self.deadline is None or now < self.deadline:
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
        self.deadline = deadline

    def _serves(self, task: Task) -> bool:
        return task.job == "ps" if self._leader == "worker" else task.job != self._leader

    def _workers(self) -> list[Task]:
        """Who is not there for others: the servers end after them, by themselves."""
        return [task for task in self.running if not self._serves(task)]


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_status(code: int) -> int:
    """A return code as shells say it: 128+n for signal n."""
    return 128 - code if code < 0 else code


def _names(tasks: Iterable[Task]) -> str:
    return ", ".join(str(task) for task in sorted(tasks))


def count(number: int, noun: str) -> str:
    """1 task, 2 tasks."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
