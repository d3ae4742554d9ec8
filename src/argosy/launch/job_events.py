"""What happens to a running job, and what may be decided about it: the words of `launch.supervise`."""

from __future__ import annotations

import signal
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


@dataclass(frozen=True)
class Restart:
    """Start this task again, which has died."""

    task: Task


@dataclass(frozen=True)
class GiveUp:
    """Let every task know that these, all of them so far, are not started again."""

    tasks: tuple[Task, ...]


Decision = Say | SendSignal | Tell | Restart | GiveUp


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
