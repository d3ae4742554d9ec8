"""What the process that takes a worker's place goes on from: on the coordinator, plain data.

A worker gives, with the push of a turn, the state that this turn began from. While the turn is not decided,
its replacement makes it again from there. Once it is, it counts, and the replacement goes through it without
a push: so it stands where the worker stood after it, whatever its script does between two turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from argosy.protocol.decisions import Answer, Apply, Decision
from argosy.protocol.saving import CarriedState


class KeptState(msgspec.Struct):
    """One worker's: the state that it gave with push `seq`, and how many of its turns since are decided."""

    seq: int = 0
    parts: dict[str, bytes] = {}
    gathers: int = 0
    turns: int = 0
    decided: int = 0  # the highest number of a push that is decided


class Standing(msgspec.Struct, array_like=True):
    """Of a worker's `KeptState`, what changes with every decision."""

    seq: int
    gathers: int
    turns: int
    decided: int


class ReplicaStates:
    """Of all workers."""

    def __init__(self) -> None:
        self.kept: dict[int, KeptState] = {}
        self.changed: set[int] = set()  # workers whose `parts` were given since this was last emptied

    def value(self) -> dict[int, Standing]:
        """All of this, but for the parts."""
        return {w: Standing(k.seq, k.gathers, k.turns, k.decided) for w, k in self.kept.items()}

    def recall(self, value: Mapping[int, Standing], parts: Mapping[int, dict[str, bytes]]) -> None:
        """Go on from there."""
        self.kept = {
            w: KeptState(each.seq, parts.get(w, {}), each.gathers, each.turns, each.decided)
            for w, each in value.items()
        }

    def bring(self, worker: int, seq: int, carried: CarriedState) -> None:
        """A worker's push has come with a state, of which only what has changed is given."""
        kept = self.kept.setdefault(worker, KeptState())
        if seq <= kept.seq:
            return  # it was sent twice
        kept.seq = seq
        if carried.parts:
            kept.parts = {**kept.parts, **carried.parts}
            self.changed.add(worker)
        kept.gathers = carried.gathers
        kept.turns = carried.turns

    def count(self, decisions: Iterable[Decision]) -> None:
        """These were decided: a turn is, when it is in a step or its worker may go on."""
        for decision in decisions:
            if isinstance(decision, Apply):
                for part in decision.parts:
                    self._decide(part.worker, part.seq)
            elif isinstance(decision, Answer) and decision.status != "pulled":
                self._decide(decision.worker, decision.seq)

    def _decide(self, worker: int, seq: int) -> None:
        kept = self.kept.get(worker)
        if kept is not None and seq > kept.decided:
            kept.decided = seq
            kept.turns += seq >= kept.seq

    def forget(self, worker: int) -> None:
        """A worker is done: who is started in its place begins anew."""
        self.kept.pop(worker, None)

    def of(self, worker: int) -> CarriedState | None:
        """From where another process goes on in a worker's place; None: it has not come to a turn."""
        kept = self.kept.get(worker)
        return None if kept is None else CarriedState(kept.parts, kept.gathers, kept.turns)
