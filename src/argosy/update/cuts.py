"""When the state is saved. A cut has a place in the order of decisions: it is one across all servers."""

from __future__ import annotations


class Cuts:
    """The plan: after every so many steps, and when somebody asks; one at a time."""

    def __init__(self, every: int | None, step: int) -> None:
        self.latest = step  # what is saved, or was there at the start
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
        """The last worker has left: whether there is something to cut, now."""
        if self._writing or step <= self.latest:
            return False
        self._begin(step)
        return True

    def written(self) -> None:
        """The latest cut is on the disk, or has failed."""
        self._writing = False

    def _begin(self, step: int) -> None:
        self.latest = step
        self._writing = True
        self._next = self._after(step)

    def _after(self, step: int) -> int | None:
        return None if self._every is None else (step // self._every + 1) * self._every
