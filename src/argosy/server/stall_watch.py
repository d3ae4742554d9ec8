"""`--stall-after`: a job whose processes live but do not train ends, and says where it was stuck.

On the coordinator only. The clock stands while a task is still to arrive or to be started again, which is
what `--wait` is for, and after the last step.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from argosy.cluster.spec import ClusterSpec, Task
from argosy.events import say
from argosy.protocol.asking import StatusReport, WaitingReport
from argosy.server.coordinator import Coordinator
from argosy.server.job_end import STALL_GRACE, JobEnd
from argosy.server.peer_links import PeerLinks
from argosy.server.status_report import StatusAnswers

# More than that between two looks, and this process itself stood still: no stall of the job's.
_LONGEST_PAUSE = 2.0
_ME = Task("ps", 0)


class StallWatch:
    """Of one job. `waiting`: for whom nothing goes on."""

    def __init__(
        self,
        stall_after: float,
        cluster: ClusterSpec,
        coordinator: Coordinator,
        links: PeerLinks,
        status: StatusAnswers,
        waiting: Callable[[], WaitingReport],
        job_end: JobEnd,
    ) -> None:
        self._stall_after = stall_after
        self._cluster = cluster
        self._coordinator = coordinator
        self._links = links
        self._status = status
        self._waiting = waiting
        self._job_end = job_end
        self._looked = time.monotonic()
        self._progress_at = coordinator.progress_at
        self._quiet = 0.0  # for how many seconds nothing has gone on
        self._asking = False

    def look(self, now: float) -> None:
        """Once it has been quiet for too long, ask those waited for what they are doing; then end the job."""
        passed, self._looked = min(now - self._looked, _LONGEST_PAUSE), now
        before, self._progress_at = self._progress_at, self._coordinator.progress_at
        self._quiet = self._quiet + passed if before == self._progress_at and self._counts() else 0.0
        if self._quiet >= self._stall_after and not self._asking:
            self._asking = True
            self._status.inquire(self._end)

    def _counts(self) -> bool:
        """Whether everybody is here, and there is something left to do."""
        job, roster = self._coordinator, self._coordinator.roster
        if job.failure is not None or (job.last_step is not None and job.step >= job.last_step):
            return False
        arriving = roster.missing() or roster.returning() or not self._links.ready
        return bool(roster.awaited()) and not arriving

    def _end(self, report: StatusReport) -> None:
        self._asking = False
        if self._quiet < self._stall_after:  # it has gone on meanwhile
            return
        self._job_end.grace = STALL_GRACE
        for line in report.lines:
            say(line)
        workers = (Task("worker", worker) for worker in self._coordinator.roster.awaited())
        names = self._waiting().tasks or tuple(map(self._cluster.describe, workers))
        why = f"no progress for {self._quiet:.0f} s at step {self._coordinator.step}"
        where = f"what it was doing is in the output of {_ME}; --stall-after sets the time"
        self._coordinator.fail(_ME, f"{why}, waiting for {', '.join(names)}; {where}")
