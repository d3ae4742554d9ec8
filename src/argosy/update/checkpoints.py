"""Checkpoints, from when one is due until it is published: what the next one waits for. Pure.

    idle ── due, or somebody asked: take() ──> cut ── every file and every state is in: ready() ──> publishing
      ^                                                                                                │
      └──────────────────────────────── written(saved or not) ─────────────────────────────────────────┘

One at a time. A cut has a place in the order of decisions, so it is one across all servers. The servers, the
ring and a worker alone all drive this; what touches the disk, they do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf

import msgspec

from argosy.protocol.saving import ShardFile


@dataclass(frozen=True)
class Contents:
    """What a checkpoint is made of: the files of its writers, or what went wrong; each replica's state."""

    step: int
    files: tuple[ShardFile, ...]
    errors: tuple[str, ...]
    replicas: Mapping[int, bytes]


class CheckpointsValue(msgspec.Struct, array_like=True):
    """What is left of them when nobody writes: see `Checkpoints`."""

    saved: int
    due: int | None
    over: bool
    states: dict[int, bytes]


class Checkpoints:
    """The checkpoints of a job, after every `every` steps and when somebody asks; the latest was at `step`.

    Each has a file of every one of `writers`. The state of a replica is waited for until it leaves, or for
    `patience` seconds; then the one that it gave before stands in for it.
    """

    def __init__(self, every: int | None, step: int, writers: int = 1, patience: float = inf) -> None:
        self.latest = step  # what is saved or being saved, or was there at the start
        self._saved = step
        self._tried = step  # the final state at this step has been cut, whatever became of it
        self._every = every
        self._next = self._after(step)
        self._over = False
        self._writers = writers
        self._patience = patience
        self._busy = False
        self._publishing = False
        self._files: dict[int, ShardFile] = {}
        self._errors: dict[int, str] = {}
        self._untold: set[int] = set()  # replicas that have not heard of the cut
        self._awaited: set[int] = set()  # those that have not given their state for it
        self._given: dict[int, bytes] = {}
        self._since: float | None = None  # when it was first asked for
        self._states: dict[int, bytes] = {}  # each replica's, as it gave it last

    def value(self) -> CheckpointsValue:
        """All that outlives a process: a checkpoint that is being made does not."""
        due = self.latest if self._busy else self._next
        return CheckpointsValue(self._saved, due, self._over, {**self._states, **self._given})

    def recall(self, value: CheckpointsValue) -> None:
        """Go on from there. A checkpoint that was being made is due again."""
        self.latest = self._saved = self._tried = value.saved
        self._next, self._over, self._states = value.due, value.over, dict(value.states)

    # --- when ---------------------------------------------------------------------------------------------
    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being made."""
        return self._busy

    def ask(self, step: int) -> None:
        """Somebody wants a checkpoint after the next step."""
        self._next = step + 1 if self._next is None else min(self._next, step + 1)

    def take(self, step: int, replicas: Iterable[int]) -> bool:
        """Whether to cut after this step, which these replicas have made. One that was due while another was
        written is taken late.
        """
        if self._next is None or step < self._next or self._busy or self._over:
            return False
        self._begin(step, replicas)
        return True

    def finish(self, step: int, replicas: Iterable[int] = ()) -> bool:
        """The training is at its end: whether there is something to cut, now. What failed is tried again."""
        if self._busy or self._over or step <= max(self.latest, self._tried):
            return False
        self._tried = step
        self._begin(step, replicas)
        return True

    def end(self) -> None:
        """The job has failed, and the parameters may be wrong: what is saved stays as it is."""
        self._over = True

    def _begin(self, step: int, replicas: Iterable[int]) -> None:
        self.latest = step
        self._next = self._after(step)
        self._busy = True
        self._files, self._errors, self._given, self._since = {}, {}, {}, None
        self._awaited = set(replicas)
        self._untold = set(self._awaited)

    def _after(self, step: int) -> int | None:
        return None if self._every is None else (step // self._every + 1) * self._every

    # --- what it is made of -------------------------------------------------------------------------------
    def tell(self, replica: int) -> bool:
        """Whether a replica is to hear, now, that its state is wanted: once for each cut."""
        if replica not in self._untold:
            return False
        self._untold.discard(replica)
        return True

    def tell_again(self, replica: int) -> None:
        """Another process has taken a replica's place, which has not given its state, and perhaps heard."""
        if self._busy and replica in self._awaited:
            self._untold.add(replica)

    def file(self, writer: int, step: int, file: ShardFile | None, error: str) -> None:
        """A writer has written its file of the cut at `step`, or could not."""
        if not self._busy or step != self.latest:
            return
        if file is not None:
            self._files[writer] = file
        else:
            self._errors[writer] = error

    def give(self, replica: int, state: bytes, step: int) -> None:
        """A replica's state at a step. If the cut has one of it, this belongs to the next; one of before the
        cut was said again, and belongs to the cut before.
        """
        self._states[replica] = state
        if replica in self._awaited and step >= self.latest:
            self._awaited.discard(replica)
            self._given[replica] = state

    def state_of(self, replica: int) -> bytes:
        """What a replica gave last."""
        return self._states.get(replica, b"")

    def wants(self, replica: int) -> bool:
        """Whether the cut waits for this replica's state."""
        return self._busy and replica in self._awaited

    def stop_waiting(self) -> None:
        """No more states will come for this cut."""
        self._awaited = set()

    def ready(self, present: Collection[int], now: float) -> Contents | None:
        """What to publish, once all is there: of the replicas, the states of those who are present."""
        if not self._busy or self._publishing:
            return None
        self._since = now if self._since is None else self._since
        if len(self._files) + len(self._errors) < self._writers:
            return None
        if self._awaited.intersection(present) and now - self._since < self._patience:
            return None
        self._publishing = True
        files = tuple(self._files[writer] for writer in sorted(self._files))
        errors = tuple(self._errors[writer] for writer in sorted(self._errors))
        return Contents(self.latest, files, errors, {**self._states, **self._given})

    def written(self, saved: bool = True) -> None:
        """It is published, or could not be."""
        self._busy = self._publishing = False
        if saved:
            self._saved = self.latest
        else:
            self.latest = self._saved
