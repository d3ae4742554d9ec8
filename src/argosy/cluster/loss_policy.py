"""What follows when a worker is lost: does it come back, does a step wait for it, how few are enough? And how
long may a job make no progress?
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LossPolicy:
    """As the settings of a job say it: `--max-restarts`, `--on-loss`, `--min-workers`, `--stall-after`."""

    max_restarts: int = 0
    on_loss: str = "wait"
    min_workers: int = 1
    stall_after: float | None = None

    @property
    def replaces(self) -> bool:
        """Whether another process takes the place of a task that has died."""
        return self.max_restarts > 0

    @property
    def waits(self) -> bool:
        """Whether a synchronous step waits for it."""
        return self.replaces and self.on_loss == "wait"
