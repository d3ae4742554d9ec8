"""Workers that begin with the same batches: a script that seeds them all alike, most likely. Said once."""

from __future__ import annotations

from argosy.events import say


class SameBatches:
    """What each worker has told of its first batches: a checksum."""

    def __init__(self) -> None:
        self._told: dict[int, int] = {}
        self._said = False

    def heard(self, worker: int, digest: int) -> None:
        """A worker has told its own."""
        same = sorted(other for other, theirs in self._told.items() if theirs == digest and other != worker)
        self._told[worker] = digest
        if same and not self._said:
            self._said = True
            say(
                f"/job:worker/task:{same[0]} and /job:worker/task:{worker} train on the same batches: "
                "seed each worker with replica.seed(n), or use replica.loader(dataset, ...)"
            )
