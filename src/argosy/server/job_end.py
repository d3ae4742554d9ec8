"""When a server's work is over, and how it ends: well, or with the failure that ended the job."""

from __future__ import annotations

import msgspec

from argosy.errors import JobFailed, SaveFailed
from argosy.protocol.joining import JobOver
from argosy.server.checkpointing import ShardSaving
from argosy.server.coordinator import Coordinator
from argosy.server.durable_memory import Memory

# After a failure, the workers have so long to hear of it before the servers end anyway.
FAILURE_GRACE = 10.0
# And so long if it is workers that hang who have ended the job: they do not listen.
STALL_GRACE = 1.0


class JobEnd:
    """Of one server; the coordinator's word ends the others."""

    def __init__(
        self, name: str, coordinator: Coordinator | None, saving: ShardSaving, memory: Memory
    ) -> None:
        self._name = name
        self._coordinator = coordinator
        self._saving = saving
        self._failed_at: float | None = None
        self.grace = FAILURE_GRACE
        self._memory = memory
        kept = memory.get("over")
        self.told = None if kept is None else msgspec.msgpack.decode(kept, type=JobOver)  # by the coordinator

    def hear(self, over: JobOver) -> None:
        """The coordinator says that the job is over; it may end then, and never say it again."""
        self.told = over
        self._memory.put("over", msgspec.msgpack.encode(over))

    def is_over(self, now: float) -> bool:
        """Whether nothing is left to do."""
        coordinator = self._coordinator
        if coordinator is None:
            return self.told is not None and not self._saving.busy
        if coordinator.failure is not None:
            return self._is_told(coordinator, coordinator.failure, now)
        roster = coordinator.roster
        return roster.everyone_left() and not roster.somebody_is_here() and not self._saving.busy

    def _is_told(self, coordinator: Coordinator, failure: JobOver, now: float) -> bool:
        """Whether every worker has heard of a failure, or had the time to, and nothing more will be saved."""
        self._failed_at = self._failed_at or now
        late = now - self._failed_at > self.grace
        if self._saving.busy:  # a server that has failed may never report its file
            return late and failure.task.startswith("/job:ps/")
        return late or not any(coordinator.is_present(w) for w in coordinator.roster.awaited())

    def verdict(self) -> JobOver:
        """How the job has ended, for the other servers; not well, if its final state is not saved."""
        unsaved = self._unsaved()
        return self._cause() if unsaved is None else JobOver(self._name, str(unsaved))

    def end(self) -> None:
        """Raises what ended the job, or SaveFailed if its final state is not saved."""
        if (unsaved := self._unsaved()) is not None:
            raise unsaved
        if (over := self._cause()).task:
            raise JobFailed(over.task, over.reason)

    def _cause(self) -> JobOver:
        return self.told or (self._coordinator and self._coordinator.failure) or JobOver()

    def _unsaved(self) -> SaveFailed | None:
        return None if self._cause().task else self._saving.failure
