"""What people hear of saving."""

from __future__ import annotations

import time

from argosy.checkpoint.archive import SaveOutcome
from argosy.events import say
from argosy.observe.journal import record

# Saves that come faster than a person reads are told of so often.
_EVERY = 10.0


class SaveLog:
    """Tells of the first save, then of one every few seconds; of a failure and of the last save always."""

    def __init__(self) -> None:
        self._told = -_EVERY
        self._untold: SaveOutcome | None = None

    def tell(self, outcome: SaveOutcome) -> None:
        """What became of a cut."""
        now = time.monotonic()
        if outcome.error:
            self.finish()  # of those that were saved, the newest is now worth knowing
            record(outcome.path, "not saved", step=outcome.step, error=outcome.error)
            say(
                f"CANNOT SAVE step {outcome.step} in {outcome.path}: {outcome.error}; "
                "earlier checkpoints are kept"
            )
            return
        record(outcome.path.parent, "saved", step=outcome.step, bytes=outcome.nbytes, seconds=outcome.seconds)
        self._untold = outcome
        if now - self._told >= _EVERY:
            self._told = now
            self.finish()

    def finish(self) -> None:
        """No other save follows: who stops a training must hear where to go on from."""
        outcome, self._untold = self._untold, None
        if outcome is not None:
            size = outcome.nbytes / 1e6
            say(f"saved step {outcome.step} in {outcome.path} ({size:.1f} MB, {outcome.seconds:.2f} s)")
