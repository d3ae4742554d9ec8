"""The launcher's look at its job: asks the coordinator once a second, and never waits for an answer.

Called from the launcher's one loop. Where there are no servers nobody is asked, and nothing is known.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ArgosyError

if TYPE_CHECKING:
    from argosy.observe.progress import Progress
    from argosy.store.status import Inquirer

ASK_EVERY = 1.0
# A server that does not answer is asked again after this, in case the question was lost.
ASK_AGAIN = 5.0
# An answer is looked for so often.
_LOOK_EVERY = 0.1
# Off a terminal a line comes so often, in seconds.
LINE_EVERY = 5.0


class Lookout:
    """Knows the latest progress of the job whose cluster this is."""

    def __init__(self, cluster: ClusterSpec) -> None:
        has_servers = bool(cluster.count("ps"))
        self._address = str(cluster.address(Task("ps", 0))) if has_servers else None
        self._inquirer: Inquirer | None = None
        self._asked = -ASK_AGAIN
        self._answered = True
        self._said_at: float | None = None
        self._said_step = 0
        self.progress: Progress | None = None

    @property
    def pause(self) -> float | None:
        """After how many seconds to look again; None if there is nobody to ask."""
        if self._address is None:
            return None
        expected = not self._answered and time.monotonic() - self._asked < ASK_EVERY
        return _LOOK_EVERY if expected else ASK_EVERY

    def look(self, now: float) -> None:
        """Take the answer that has come, if one has; ask again when it is time."""
        if self._address is None:
            return
        if self._inquirer is None:
            self._open(self._address)
        if self._inquirer is None:
            return
        self._take(self._inquirer)
        if now - self._asked >= (ASK_EVERY if self._answered else ASK_AGAIN):
            self._asked, self._answered = now, False
            self._inquirer.send()

    def _open(self, address: str) -> None:
        # Only now: tasks start before this is imported.
        from argosy.observe.progress import Speedometer
        from argosy.store.status import Inquirer

        self._speedometer = Speedometer()
        self._inquirer = Inquirer.at(address, "launcher")

    def _take(self, inquirer: Inquirer) -> None:
        try:
            while not self._answered and (answer := inquirer.receive(0.0)) is not None:
                self._answered = True
                if answer.job is not None and answer.job.mode:  # else nobody trains yet
                    self.progress = self._speedometer.read(answer.job, time.time())
        except ArgosyError:
            """What is no answer of ours is none."""

    def line(self, now: float) -> str | None:
        """A line for those who have no terminal, when one is due: the job has moved on, and some time."""
        if self.progress is None:
            return None
        if self._said_at is None:
            self._said_at = now
        if now - self._said_at < LINE_EVERY or self.progress.step == self._said_step:
            return None
        self._said_at, self._said_step = now, self.progress.step
        return self.progress.line()

    def close(self) -> None:
        """Ask no more."""
        self._address = None
        if self._inquirer is not None:
            self._inquirer.close()
            self._inquirer = None
