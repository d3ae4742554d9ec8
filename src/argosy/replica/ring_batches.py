"""Whether the workers of a ring begin with the same batches: told through the store, where nobody waits."""

from __future__ import annotations

from argosy.ring.member import RingMember
from argosy.store.same_batches import SameBatches


class RingBatches:
    """One worker's part; the chief compares."""

    def __init__(self, member: RingMember) -> None:
        self._member = member
        self._compares = False

    def after_step(self, digest: int) -> None:
        """A step was made with a gradient of this worker; `digest`: of its first batches, once."""
        if digest:
            self._member.tell("batches", str(digest))
            self._compares = self._member.rank == 0
        elif self._compares:  # whoever has a part in this step has told its own before it
            self._compares = False
            first = SameBatches()
            for rank, told in self._member.told("batches").items():
                first.heard(rank, int(told))
