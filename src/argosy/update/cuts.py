"""When the state is saved. A cut has a place in the order of decisions: it is one across all servers."""

from __future__ import annotations


class Cuts:
    """The plan: after every so many steps, and when somebody asks; one at a time."""

    def __init__(self, every: int | None, step: int) -> None:
        self.latest = step  # what is saved or being saved, or was there at the start
        self._saved = step
        self._tried = step  # the final state at this step has been cut, whatever became of it
        self._every = every
        self._writing = False
        self._next = self._after(step)

    def ask(self, step: int) -> None:
        """Somebody wants a cut after the next step."""
        self._next = step + 1 if self._next is None else min(self._next, step + 1)

    def take(self, step: int) -> bool:
        """Whether to cut after this step; one that was due while another was written is."""
        if self._next is None or step < self._next or self._writing:
            return False
        self._begin(step)
        return True

    def finish(self, step: int) -> bool:
        """The last worker has left: whether there is something to cut, now. What failed is tried again."""
        if self._writing or step <= max(self.latest, self._tried):
            return False
        self._tried = step
        self._begin(step)
        return True

    def written(self, saved: bool = True) -> None:
        """The latest cut is on the disk, or has failed."""
        self._writing = False
        if saved:
            self._saved = self.latest
        else:
            self.latest = self._saved

    def _begin(self, step: int) -> None:
        self.latest = step
        self._writing = True
        self._next = self._after(step)

    def _after(self, step: int) -> int | None:
        return None if self._every is None else (step // self._every + 1) * self._every
