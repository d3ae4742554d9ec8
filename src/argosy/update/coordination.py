"""What the coordinator decides: who is in the job, what each server holds, what happens next.

`on(event)` returns decisions; server 0 carries them out and passes them to the others. A push is offered to
admission once every server holds it, and not before: so a worker that dies between two servers leaves
nothing behind on either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from argosy.protocol.decisions import Answer, Apply, Cut, Decision, Forget, Push
from argosy.update.admission import Admission, AdmissionValue
from argosy.update.checkpoints import Checkpoints
from argosy.update.membership import Presence, Roster, RosterValue


class Held(msgspec.Struct, frozen=True):
    """A server holds its share of a push; server 0 also says what the push is.

    `server` None: every server has it in sight, in memory that it shares with the worker.
    """

    server: int | None
    worker: int
    seq: int
    push: Push | None = None


class Arrived(msgspec.Struct, frozen=True):
    """A worker is here."""

    worker: int


class Finished(msgspec.Struct, frozen=True):
    """A worker has said that it is done."""

    worker: int


class Lost(msgspec.Struct, frozen=True):
    """A worker is known to be gone; `returns`: another process will take its place, and is waited for."""

    worker: int
    returns: bool = False


class CutWanted(msgspec.Struct, frozen=True):
    """Somebody wants the state to be saved."""


class CutWritten(msgspec.Struct, frozen=True):
    """The state of the latest cut is on the disk, or could not be written."""

    saved: bool = True


class StopWanted(msgspec.Struct, frozen=True):
    """The job is to end after the step that is being collected."""


# So many pushes fit into one life of a worker.
_LIFE_BITS = 40


def is_of_later_life(seq: int, other: int) -> bool:
    """Whether the process that gave push `seq` has come in the place of the one that gave `other`."""
    return seq >> _LIFE_BITS > other >> _LIFE_BITS


_OtherEvent: TypeAlias = Arrived | Finished | Lost | CutWanted | CutWritten | StopWanted
Event: TypeAlias = Held | _OtherEvent


class CoordinationValue(msgspec.Struct, array_like=True):
    """What the coordinator knows, as plain data: `arriving` are (worker, number, servers, push)."""

    roster: RosterValue
    admission: AdmissionValue
    arriving: list[tuple[int, int, list[int], Push | None]]
    offered: list[tuple[int, int, int]]
    arrivals: dict[int, int]


@dataclass
class _Arriving:
    """A push that some servers hold already."""

    servers: set[int] = field(default_factory=set)
    push: Push | None = None


class Coordination:
    """Turns what happens into what every server does."""

    def __init__(self, servers: int, roster: Roster, admission: Admission) -> None:
        self.roster = roster
        self.admission = admission
        self.checkpoints: Checkpoints | None = None
        self.replaces = False  # whether a worker that is gone is waited for until it is back
        self._servers = servers
        self._arriving: dict[tuple[int, int], _Arriving] = {}
        # worker, life -> the highest sequence number offered
        self._offered: dict[tuple[int, int], int] = {}
        self._arrivals: dict[int, int] = {}  # worker -> how often it has come

    def value(self) -> CoordinationValue:
        """All of this, but for the checkpoints."""
        arriving = [(*key, sorted(each.servers), each.push) for key, each in self._arriving.items()]
        offered = [(*life, seq) for life, seq in self._offered.items()]
        return CoordinationValue(
            self.roster.value(), self.admission.value(), arriving, offered, self._arrivals
        )

    def recall(self, value: CoordinationValue) -> None:
        """Go on from there; the policy is that of the same mode."""
        self.roster.recall(value.roster)
        self.admission.recall(value.admission)
        self._arriving = {
            (worker, seq): _Arriving(set(servers), push) for worker, seq, servers, push in value.arriving
        }
        self._offered = {(worker, life): seq for worker, life, seq in value.offered}
        self._arrivals = dict(value.arrivals)

    def on(self, event: Event) -> list[Decision]:
        """What follows from an event."""
        decisions = self._held(event) if isinstance(event, Held) else self._decide(event)
        return decisions if self.checkpoints is None else self._with_cuts(self.checkpoints, decisions)

    def _with_cuts(self, checkpoints: Checkpoints, decisions: list[Decision]) -> list[Decision]:
        result: list[Decision] = []
        for decision in decisions:
            if isinstance(decision, Answer) and checkpoints.tell(decision.worker):
                decision = msgspec.structs.replace(decision, cut=True)
            result.append(decision)
            if isinstance(decision, Apply) and checkpoints.take(decision.step, self.roster.in_training()):
                result.append(Cut(decision.step))
        if self.roster.everyone_left() and checkpoints.finish(self.admission.step):
            result.append(Cut(self.admission.step))
        return result

    def _decide(self, event: _OtherEvent) -> list[Decision]:
        match event:
            case CutWanted():
                if self.checkpoints is not None:
                    self.checkpoints.ask(self.admission.step)
                return []
            case CutWritten(saved):
                if self.checkpoints is not None:
                    self.checkpoints.written(saved)
                return []
            case StopWanted():
                self.admission.stop()
                return []
            case Arrived(worker):
                return self._arrive(worker)
            case Finished(worker):
                self.roster.finish(worker)
            case Lost(worker, returns):
                if returns and self.roster[worker] is Presence.PRESENT:  # not one that brings nothing more
                    self.roster.expect_back(worker)
                else:
                    self.roster.lose(worker)
        return [*self._abandon(event.worker), *self.admission.roster_changed()]

    def _arrive(self, worker: int) -> list[Decision]:
        # It may be back before anybody noticed that it had gone.
        here = self.roster.is_here(worker)
        decisions = self._decide(Lost(worker, self.replaces)) if here else []
        decisions += self.admission.withdraw(worker)
        if self.checkpoints is not None:
            self.checkpoints.tell_again(worker)
        self.roster.arrive(worker)
        self._arrivals[worker] = self._arrivals.get(worker, 0) + 1
        return decisions

    def base_seq(self, worker: int) -> int:
        """Where a worker that has just arrived starts to count its pushes.

        A worker that comes back starts far above what it sent before: what is still on its way from its
        earlier life can then never be taken for something new.
        """
        return self._arrivals.get(worker, 0) << _LIFE_BITS

    def waited_for(self) -> list[int]:
        """The workers without whom nothing goes on."""
        return list(self.admission.waited_for())

    def _held(self, event: Held) -> list[Decision]:
        life = (event.worker, event.seq >> _LIFE_BITS)
        if event.seq <= self._offered.get(life, 0):
            return []
        if event.seq <= self.base_seq(event.worker) or not self.roster.is_here(event.worker):
            return [Forget(event.worker, event.seq)]  # of a life that has ended: it will never be complete
        push = event.push if event.server is None else self._complete(event, event.server)
        if push is None:
            return []
        self._arriving.pop((event.worker, event.seq), None)
        self._offered[life] = event.seq
        return self._last(push) if push.last else self.admission.offer(push)

    def _last(self, push: Push) -> list[Decision]:
        """Nobody waits for this worker from now on; what follows from that is in the values that it gets."""
        self.roster.leave(push.worker)
        follows = [*self._abandon(push.worker), *self.admission.roster_changed()]
        step, last_step = self.admission.step, self.admission.last_step
        stop = last_step is not None and step >= last_step
        return [*follows, Answer(push.worker, push.seq, "pulled", step, stop=stop)]

    def _complete(self, event: Held, server: int) -> Push | None:
        """The push, if every server holds its share by now."""
        arriving = self._arriving.setdefault((event.worker, event.seq), _Arriving())
        arriving.servers.add(server)
        arriving.push = event.push or arriving.push
        return arriving.push if len(arriving.servers) == self._servers else None

    def _abandon(self, worker: int) -> list[Decision]:
        """Free what only some servers hold of a worker that has left."""
        partial = sorted(key for key in self._arriving if key[0] == worker)
        for key in partial:
            del self._arriving[key]
        return [Forget(*key) for key in partial]
