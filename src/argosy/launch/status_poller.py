"""The launcher's look at its job, once a second and without ever waiting: it asks the coordinator.

Called from the launcher's one loop. Where there are no servers the chief leaves word in a file.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import UNDECODABLE, ArgosyError

if TYPE_CHECKING:
    from argosy.observe.progress import Progress, Speedometer
    from argosy.protocol.asking import JobStatus
    from argosy.store.inquiry import Inquirer

ASK_EVERY = 1.0
# A server that does not answer is asked again after this, in case the question was lost.
ASK_AGAIN = 5.0
# An answer is looked for so often.
_LOOK_EVERY = 0.1
# Off a terminal a line comes so often, in seconds.
LINE_EVERY = 5.0


class StatusPoller:
    """Knows the latest progress of the job whose cluster this is."""

    def __init__(self, cluster: ClusterSpec, status_file: Path) -> None:
        self._address = str(cluster.address(Task("ps", 0))) if cluster.count("ps") else None
        self._status_file = status_file
        self._inquirer: Inquirer | None = None
        self._speedometer: Speedometer | None = None
        self._asked = -ASK_AGAIN
        self._answered = True
        self._said_at: float | None = None
        self._seen: object = None  # the progress that `line` has looked at
        self._said_step = 0
        self.progress: Progress | None = None

    @property
    def pause(self) -> float:
        """After how many seconds to look again."""
        expected = not self._answered and time.monotonic() - self._asked < ASK_EVERY
        return _LOOK_EVERY if expected else ASK_EVERY

    def look(self, now: float) -> None:
        """Take the answer that has come, if one has; ask again when it is time."""
        if self._inquirer is not None and not self._answered:
            self._take(self._inquirer)
        if now - self._asked < (ASK_EVERY if self._answered else ASK_AGAIN):
            return
        self._asked = now
        if self._address is None:
            self._read()
        else:
            self._ask(self._address)

    def ask_again(self) -> None:
        """At once, and over a connection of its own: whoever was asked may have died since."""
        self.close()
        self._asked = -ASK_AGAIN

    def _ask(self, address: str) -> None:
        # Imported only now: tasks start before this.
        from argosy.store.inquiry import Inquirer

        if self._inquirer is None:
            self._inquirer = Inquirer.at(address, "launcher")
        self._inquirer.send()
        self._answered = False

    def _take(self, inquirer: Inquirer) -> None:
        try:
            answer = inquirer.receive(0.0)
        except ArgosyError:  # not an answer of ours
            return
        if answer is not None:
            self._answered = True
            self._note(answer.job)

    def _read(self) -> None:
        import msgspec

        from argosy.protocol.asking import JobStatus

        try:
            self._note(msgspec.json.decode(self._status_file.read_bytes(), type=JobStatus))
        except (OSError, *UNDECODABLE):
            """Not there yet."""

    def _note(self, job: JobStatus | None) -> None:
        from argosy.observe.progress import Speedometer

        self._speedometer = self._speedometer or Speedometer()
        if job is not None and job.mode:  # else nobody trains yet
            self.progress = self._speedometer.read(job, time.time())

    def line(self, now: float) -> str | None:
        """A line for those who have no terminal, when one is due: the job has moved on, and some time."""
        # Said as soon as it is heard, or not at all: at the end of a job it would come after the last word.
        seen, self._seen = self._seen, self.progress
        if self.progress is None or self.progress is seen:
            return None
        if self._said_at is None:
            self._said_at = now
        if now - self._said_at < LINE_EVERY or self.progress.step == self._said_step:
            return None
        self._said_at, self._said_step = now, self.progress.step
        return self.progress.line()

    def close(self) -> None:
        """Ask no more."""
        if self._inquirer is not None:
            self._inquirer.close()
            self._inquirer = None
