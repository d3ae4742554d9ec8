"""When a gradient is applied: one policy a mode, each a pure state machine.

A policy is offered a push once every server holds it, and is told when the roster changes. It answers with
decisions. `step` counts the updates so far; once it reaches `last_step` nothing is applied any more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeAlias

import msgspec

from argosy.modes import Async, Mode, Sync
from argosy.protocol.decisions import Answer, Apply, Decision, Forget, Part, Push, Status
from argosy.update.membership import Roster


class AsyncValue(msgspec.Struct, array_like=True, tag="async"):
    """An asynchronous policy as plain data."""

    step: int
    last_step: int | None
    outstanding: dict[int, int]
    held: list[Push]
    unanswered: list[tuple[Push, Status, int]]


class SyncValue(msgspec.Struct, array_like=True, tag="sync"):
    """A synchronous policy as plain data."""

    step: int
    last_step: int | None
    fresh: list[Part]
    folded: list[Part]
    turns: dict[int, int]
    waiting: dict[int, Push]
    left: dict[int, Push]


AdmissionValue: TypeAlias = AsyncValue | SyncValue


class Admission(Protocol):
    """What every policy can do."""

    step: int
    last_step: int | None

    def offer(self, push: Push) -> list[Decision]:
        """Every server holds this push: what now?"""

    def roster_changed(self) -> list[Decision]:
        """Somebody came, finished or is gone: what now?"""

    def withdraw(self, worker: int) -> list[Decision]:
        """Another process takes a worker's place, and brings again what was not decided: forget that."""

    def waited_for(self) -> Iterator[int]:
        """The workers without whom nothing goes on, in order."""

    def stop(self) -> None:
        """The next step is the last."""

    def queue(self) -> int:
        """How many gradients are held for a step to come."""

    def value(self) -> AdmissionValue:
        """All of this as plain data."""

    def recall(self, value: AdmissionValue) -> None:
        """Go on from there."""


def admission_for(mode: Mode, roster: Roster, last_step: int | None, step: int = 0) -> Admission:
    """The policy of a mode."""
    if isinstance(mode, Sync):
        return SyncAdmission(mode, roster, last_step, step)
    bound = mode.max_staleness if isinstance(mode, Async) else None
    return AsyncAdmission(bound, roster, last_step, step)


def _sooner(planned: int | None, step: int) -> int:
    return step if planned is None else min(planned, step)


def _refuse(push: Push, step: int, stop: bool) -> list[Decision]:
    """The answer to a push whose gradient is not taken."""
    if push.kind == "pull":
        return [Answer(push.worker, push.seq, "pulled", step, stop=stop)]
    if push.kind == "skip":
        return [Answer(push.worker, push.seq, "skipped", step, stop=stop)]
    return [
        Forget(push.worker, push.seq),
        Answer(push.worker, push.seq, "dropped", step, step - push.version, stop),
    ]


class AsyncAdmission:
    """Each gradient is applied when it arrives; with a bound, in an order that keeps all of them within it.

    A worker that was given version v must see its gradient applied before step v + bound + 1. Treat that as
    a deadline: a gradient is applied only if all the others outstanding can still meet theirs, one update
    each, the earliest first; and fresh values are given out only if their own deadline can be met. The
    worker with the earliest deadline is never held back, so there is always somebody who can go on.
    """

    def __init__(self, bound: int | None, roster: Roster, last_step: int | None, step: int = 0) -> None:
        self.step = step
        self.last_step = last_step
        self._bound = bound
        self._roster = roster
        self._outstanding: dict[int, int] = {}  # worker -> the version that it computes from
        self._held: list[Push] = []
        self._unanswered: list[tuple[Push, Status, int]] = []

    def value(self) -> AsyncValue:
        """See `Admission`."""
        return AsyncValue(self.step, self.last_step, self._outstanding, self._held, self._unanswered)

    def recall(self, value: AdmissionValue) -> None:
        """See `Admission`."""
        assert isinstance(value, AsyncValue)
        self.step, self.last_step = value.step, value.last_step
        self._outstanding, self._held = dict(value.outstanding), list(value.held)
        self._unanswered = list(value.unanswered)

    @property
    def _stop(self) -> bool:
        return self.last_step is not None and self.step >= self.last_step

    def stop(self) -> None:
        self.last_step = _sooner(self.last_step, self.step + 1)

    def offer(self, push: Push) -> list[Decision]:
        """Apply at once, or hold until the bound allows it."""
        if self._stop:
            return _refuse(push, self.step, stop=True)
        if self._bound is None and push.kind == "gradient":  # nothing is ever held back
            staleness = self.step - push.version
            self.step += 1
            applied = Answer(push.worker, push.seq, "applied", self.step, staleness, self._stop)
            return [Apply(self.step, (push.part,)), applied]
        if push.kind == "gradient":
            if push.worker not in self._outstanding:
                self._outstanding[push.worker] = push.version
            self._held.append(push)
        else:
            self._outstanding.pop(push.worker, None)
            self._unanswered.append((push, "skipped" if push.kind == "skip" else "pulled", 0))
        return list(self._drain())

    def roster_changed(self) -> list[Decision]:
        """A worker that has left holds nobody back, and what it had not been answered is forgotten."""
        awaited = {worker for worker in self._roster.awaited() if self._roster.is_here(worker)}
        waiting = [*self._held, *(push for push, _, _ in self._unanswered)]
        self._outstanding = {w: version for w, version in self._outstanding.items() if w in awaited}
        self._held = [push for push in self._held if push.worker in awaited]
        self._unanswered = [entry for entry in self._unanswered if entry[0].worker in awaited]
        forgotten = [Forget(push.worker, push.seq) for push in waiting if push.worker not in awaited]
        return [*forgotten, *self._drain()]

    def withdraw(self, worker: int) -> list[Decision]:
        """Nothing: it was forgotten when the worker went."""
        return []

    def waited_for(self) -> Iterator[int]:
        """Those with the earliest deadlines, while somebody is held back by them."""
        if self._held or self._unanswered:
            holding = {push.worker for push in self._held}
            yield from sorted(w for w in self._outstanding if w not in holding)

    def queue(self) -> int:
        """Those that the bound holds back."""
        return len(self._held)

    def _drain(self) -> Iterator[Decision]:
        while (push := next((p for p in self._held if self._may_apply(p)), None)) is not None:
            yield from self._apply(push)
        for waiting in list(self._unanswered):
            if self._stop or self._bound is None or len(self._outstanding) <= self._bound:
                self._unanswered.remove(waiting)
                push, status, staleness = waiting
                if not self._stop:
                    self._outstanding[push.worker] = self.step
                yield Answer(push.worker, push.seq, status, self.step, staleness, self._stop)

    def _apply(self, push: Push) -> Iterator[Decision]:
        self._held.remove(push)
        self._outstanding.pop(push.worker, None)
        self._unanswered.append((push, "applied", self.step - push.version))
        self.step += 1
        yield Apply(self.step, (push.part,))
        if self._stop:
            for late in self._held:
                yield from _refuse(late, self.step, stop=True)
            self._held.clear()

    def _may_apply(self, push: Push) -> bool:
        if self._bound is None:
            return True
        others = sorted(version for worker, version in self._outstanding.items() if worker != push.worker)
        return all(self.step + 1 + place <= version + self._bound for place, version in enumerate(others))


class SyncAdmission:
    """A step is collected, averaged and applied once; those who wait for it then go on together.

    A worker has one turn a step, or 1 + tokens of them. A turn is a gradient or a skip. The step is made
    when `aggregate` gradients are there, or as many as can still come: so nobody waits for a worker that has
    left or has skipped.
    """

    def __init__(self, mode: Sync, roster: Roster, last_step: int | None, step: int = 0) -> None:
        self.step = step
        self.last_step = last_step
        self._mode = mode
        self._roster = roster
        self._fresh: list[Part] = []
        self._folded: list[Part] = []
        self._turns: dict[int, int] = {}
        self._waiting: dict[int, Push] = {}
        self._left: dict[int, Push] = {}  # gradients of this step whose workers were lost before the answer

    def value(self) -> SyncValue:
        """See `Admission`."""
        collected = (self._fresh, self._folded, self._turns, self._waiting, self._left)
        return SyncValue(self.step, self.last_step, *collected)

    def recall(self, value: AdmissionValue) -> None:
        """See `Admission`."""
        assert isinstance(value, SyncValue)
        self.step, self.last_step = value.step, value.last_step
        self._fresh, self._folded = list(value.fresh), list(value.folded)
        self._turns, self._waiting = dict(value.turns), dict(value.waiting)
        self._left = dict(value.left)

    @property
    def _stop(self) -> bool:
        return self.last_step is not None and self.step >= self.last_step

    def stop(self) -> None:
        self.last_step = _sooner(self.last_step, self.step + 1)

    def offer(self, push: Push) -> list[Decision]:
        """Take the push into the step being collected, or deal with a late one."""
        if self._stop or push.kind == "pull":
            return _refuse(push, self.step, self._stop)
        if push.version < self.step:
            return self._late(push)
        self._turns[push.worker] = self._turns.get(push.worker, 0) + 1
        replaced = self._take(push) if push.kind == "gradient" else []
        self._waiting[push.worker] = push
        return [*replaced, *self._complete(), *self._run_ahead()]

    def roster_changed(self) -> list[Decision]:
        """The step may need one fewer now, and those who stay may have to run further ahead."""
        awaited = set(self._roster.awaited())
        left = [self._waiting.pop(worker) for worker in sorted(self._waiting) if worker not in awaited]
        self._left |= {push.worker: push for push in left if push.kind == "gradient"}
        skips = [Forget(push.worker, push.seq) for push in left if push.kind == "skip"]
        return [*skips, *self._complete(), *self._run_ahead()]

    def withdraw(self, worker: int) -> list[Decision]:
        """The turn that was not answered is given back: a late second copy of it might count, too."""
        push = self._waiting.pop(worker, None) or self._left.pop(worker, None)
        if push is None:
            return []
        self._turns[worker] -= 1
        if push.kind == "gradient":
            self._fresh.remove(push.part)
        return [Forget(worker, push.seq)]

    def waited_for(self) -> Iterator[int]:
        """Those who still have a turn in the step that others wait for."""
        if self._waiting:
            yield from (w for w in sorted(self._roster.awaited()) if not self._turns.get(w))

    def queue(self) -> int:
        """Those of the step being collected."""
        return len(self._fresh) + len(self._folded)

    def _late(self, push: Push) -> list[Decision]:
        if push.kind == "skip" or self._mode.late == "drop":
            return _refuse(push, self.step, stop=False)
        self._folded.append(push.part)
        return [Answer(push.worker, push.seq, "folded", self.step, self.step - push.version)]

    def _take(self, push: Push) -> list[Decision]:
        """Count a gradient; where each worker counts once, the one of its earlier life makes way."""
        earlier = [p for p in self._fresh if p.worker == push.worker] if self._mode.distinct else []
        for part in earlier:
            self._fresh.remove(part)
        self._fresh.append(push.part)
        return [Forget(part.worker, part.seq) for part in earlier]

    def _run_ahead(self) -> Iterator[Decision]:
        for worker in [w for w in sorted(self._waiting) if self._turns[w] <= self._tokens()]:
            push = self._waiting.pop(worker)
            status: Status = "held" if push.kind == "gradient" else "skipped"
            yield Answer(worker, push.seq, status, self.step)

    def _tokens(self) -> int:
        if self._mode.distinct:
            return 0
        if self._mode.tokens is not None:
            return self._mode.tokens
        return self._mode.tokens_needed(len(self._roster.awaited()))

    def _quota(self) -> int:
        """How many gradients make this step: never more than can come."""
        awaited = self._roster.awaited()
        turns = self._tokens() + 1
        possible = len(self._fresh) + sum(max(0, turns - self._turns.get(w, 0)) for w in awaited)
        wanted = self._mode.aggregate or (math.inf if self._mode.distinct else max(1, len(awaited)))
        return int(min(wanted, possible))

    def _complete(self) -> Iterator[Decision]:
        if self._stop or len(self._fresh) < self._quota():
            return
        last_out = self._roster.everyone_left()
        if self._fresh or (last_out and self._folded):
            self.step += 1
            yield Apply(self.step, tuple(sorted([*self._fresh, *self._folded])))
            self._folded.clear()
        elif not self._waiting:
            return
        yield from self._release()

    def _release(self) -> Iterator[Decision]:
        waiting: Iterable[Push] = [self._waiting[w] for w in sorted(self._waiting)]
        self._fresh.clear()
        self._turns.clear()
        self._waiting.clear()
        self._left.clear()
        for push in waiting:
            status: Status = "applied" if push.kind == "gradient" else "skipped"
            yield Answer(push.worker, push.seq, status, self.step, 0, self._stop)
