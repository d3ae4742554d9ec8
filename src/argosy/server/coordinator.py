"""Server 0's second task: it knows who is in the job, gathers what the servers hold, and orders what follows.

Decisions come from `update/`; this file turns messages into its events and tells everybody the outcome.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from argosy.cluster.loss_policy import LossPolicy
from argosy.cluster.spec import Task
from argosy.errors import ModelMismatch, WireError
from argosy.modes import Mode, Sync
from argosy.protocol.asking import WaitingReport
from argosy.protocol.decisions import Decision, Push
from argosy.protocol.header import Header
from argosy.protocol.joining import Describe, Described, JobOver, Refused, Register
from argosy.protocol.layout import Layout
from argosy.protocol.training import Gathered, GatherRequest, PushRequest, Scale, Wishes
from argosy.server.changes import Changes
from argosy.server.coordinator_value import CoordinatorValue
from argosy.server.durable_memory import Memory
from argosy.server.gathers import Gathers, GathersValue
from argosy.server.replica_states import ReplicaStates
from argosy.server.tally import Tally
from argosy.store.same_batches import SameBatches
from argosy.update.admission import admission_for
from argosy.update.checkpoints import Checkpoints
from argosy.update.clipping import NormCollector
from argosy.update.coordination import (
    Arrived,
    Coordination,
    CutWanted,
    CutWritten,
    Event,
    Finished,
    Held,
    Lost,
    StopWanted,
)
from argosy.update.membership import Presence, Roster

CHIEF = 0
_LOSSES = LossPolicy()


_encode = msgspec.msgpack.encode


class Coordinator:
    """The head of the job.

    `tell` sends to a worker, `order` has decisions carried out on every server, `scale` gives every server
    the factor of a clipped step; `losses` says what follows when a worker is lost.
    """

    def __init__(
        self,
        servers: int,
        workers: int,
        tell: Callable[[int, Header], None],
        order: Callable[[Sequence[Decision]], None],
        scale: Callable[[Scale], None],
        losses: LossPolicy = _LOSSES,
    ) -> None:
        self.roster = Roster(workers)
        self.layout = Layout()
        self.mode: Mode | None = None
        self.failure: JobOver | None = None
        self.progress_at = time.monotonic()
        self._servers = servers
        self._tell = tell
        self._order = order
        self._scale = scale
        self._core = Coordination(servers, self.roster, admission_for(Sync(), self.roster, None))
        self._layouts: dict[int, Layout] = {}  # each that was registered, by its number of parameters
        self._describing: dict[int, Describe] = {}
        self._described: set[int] = set()  # workers whose model is known to be the chief's
        self._losses = losses
        self._core.replaces = losses.waits
        self._changed = True  # since this was last kept
        self._gathers_changed = False
        self._gathers = Gathers(keeps=losses.replaces)
        self._gather_bases: dict[int, int] = {}  # where each worker starts to count its gathers
        self._norms: NormCollector | None = None
        self.states = ReplicaStates()
        self.tally = Tally(workers)
        self.changes = Changes(lambda: self.step)
        self._first_batches = SameBatches()

    # --- what the next process of this server needs -------------------------------------------------------
    def keep(self, memory: Memory) -> None:
        """Put what has changed into the memory, beside the registrations; the caller commits it."""
        if self._gathers_changed:
            self._gathers_changed = False
            memory.put("gathers", _encode(self._gathers.value()))
        for worker in self.states.changed:
            if worker in self.states.kept:
                memory.put(f"state/{worker}", _encode(self.states.kept[worker].parts))
        self.states.changed.clear()
        if not self._changed:
            return
        self._changed = False
        value = CoordinatorValue(
            self._core.value(),
            sorted(self._described),
            None if self._norms is None else self._norms.value(),
            self.tally.value(),
            self.failure,
            self.states.value(),
            self._gather_bases,
        )
        memory.put("coordinator", _encode(value))

    def recall(
        self, memory: Memory, registrations: Sequence[Register], checkpoints: Checkpoints | None
    ) -> None:
        """Go on where the last process of this server was."""
        for header in registrations:
            self.register(header, 0, checkpoints)
        if (kept := memory.get("gathers")) is not None:
            self._gathers.recall(msgspec.msgpack.decode(kept, type=GathersValue))
        if (kept := memory.get("coordinator")) is None:
            return
        value = msgspec.msgpack.decode(kept, type=CoordinatorValue)
        self._core.recall(value.core)
        self._described = set(value.described)
        if self._norms is not None and value.norms is not None:
            self._norms.recall(value.norms)
        self.tally.recall(value.tally)
        self.failure = value.failure
        self._gather_bases = value.gather_bases
        given = {worker: memory.get(f"state/{worker}") for worker in value.states}
        parts = {w: msgspec.msgpack.decode(p, type=dict[str, bytes]) for w, p in given.items() if p}
        self.states.recall(value.states, parts)

    @property
    def step(self) -> int:
        """The global step."""
        return self._core.admission.step

    @property
    def last_step(self) -> int | None:
        """The step at which the job ends."""
        return self._core.admission.last_step

    @property
    def queue(self) -> int:
        """How many gradients are held for a step to come."""
        return self._core.admission.queue()

    # --- membership ---------------------------------------------------------------------------------------
    def arrive(self, worker: int, again: bool) -> int:
        """A worker is here (`again`: the same process as before); where it starts to count its pushes."""
        self._changed = True
        if not again:
            stood, replaces = self.roster[worker], self._core.replaces
            waited = stood is Presence.RETURNING or (replaces and stood is Presence.PRESENT)
            self._gather_bases[worker] = 0 if waited else self._gathers.held
            self.changes.arrive(Task("worker", worker))
            self._on(Arrived(worker))
        return self._core.base_seq(worker)

    def gather_base(self, worker: int) -> int:
        """Where a worker starts to count its gathers: one that comes later, from those that have taken place;
        one in another's place makes all of them again.
        """
        return self._gather_bases.get(worker, 0)

    def finish(self, worker: int) -> None:
        """A worker is done."""
        self._changed = True
        self.states.forget(worker)
        self._depart(Finished(worker))

    def lose(self, worker: int) -> None:
        """A worker is gone; with the last one that is needed, a job that is not at its end has failed."""
        self._changed = True
        self._depart(Lost(worker))
        if self._is_at_its_end:
            return
        last, least = self.roster.abandoned_by(), self._losses.min_workers
        if last is not None:
            self._lack(last, "no worker is left to go on")
        elif (left := self.roster.remaining()) < least:
            self._lack(worker, f"only {left} workers are left of the {least} that --min-workers asks for")

    def expects_back(self, worker: int) -> bool:
        """Whether a worker that is gone is waited for: each in a synchronous job, in any job the last one."""
        if not self._losses.replaces or self.roster[worker] is not Presence.PRESENT or self._is_at_its_end:
            return False
        return self._core.replaces or self.roster.awaited() == (worker,)

    def expect_back(self, worker: int) -> None:
        """A worker is gone, and waited for."""
        self._changed = True
        self._depart(Lost(worker, returns=True))

    def give_up(self, worker: int) -> None:
        """A worker that was waited for does not come back."""
        self._changed = True
        self.lose(worker)
        self.changes.leave(Task("worker", worker))
        if worker == CHIEF and self.mode is None:
            self.fail(Task("worker", worker), "it was lost before it had registered the model")

    @property
    def _is_at_its_end(self) -> bool:
        return self.last_step is not None and self.step >= self.last_step

    def _lack(self, worker: int, why: str) -> None:
        end = "" if self.last_step is None else f" of {self.last_step}"
        self.fail(
            Task("worker", worker),
            f"its connection ended at step {self.step}{end}, and {why}; "
            "start the job again: with a directory it goes on from its newest checkpoint",
        )

    def _depart(self, event: Finished | Lost) -> None:
        self._describing.pop(event.worker, None)
        self._described.discard(event.worker)
        note = self.changes.lose if isinstance(event, Lost) else self.changes.leave
        note(Task("worker", event.worker))
        self._on(event)
        self._complete_gathers()

    def is_present(self, worker: int) -> bool:
        """Whether a worker is in the job now."""
        return self.roster.is_here(worker)

    def is_in_training(self, worker: int) -> bool:
        """Whether a worker has begun to train and has not ended, though it may have to come back."""
        return worker in self.roster.in_training()

    def fail(self, task: Task | str, reason: str) -> None:
        """End the job: everybody present hears of it, now if it waits for an answer, or when it next asks."""
        self._changed = True
        if self.failure is None:
            if self._core.checkpoints is not None:
                self._core.checkpoints.end()
            self.failure = JobOver(str(task), reason)
            for worker in self.roster.awaited():
                self._tell(worker, self.failure)

    # --- registration -------------------------------------------------------------------------------------
    def describe(self, worker: int, request: Describe) -> None:
        """A worker says what its parameters are; it hears where they lie once the chief has registered."""
        self._changed = True
        self._describing[worker] = request
        self._answer_descriptions()

    def register(self, header: Register, step: int, checkpoints: Checkpoints | None) -> None:
        """The chief has registered: from now on there is a mode, and a layout. The job begins at `step`."""
        self._changed = True
        if self.mode is None:
            admission = admission_for(header.mode, self.roster, header.last_step, step)
            self._core.admission = admission
            self._core.checkpoints = checkpoints
            self._core.replaces = self._losses.waits and isinstance(header.mode, Sync)
            if header.clip_norm is not None:
                self._norms = NormCollector(self._servers, header.clip_norm)
        self.mode = header.mode
        self.layout = header.layout
        self._layouts[len(header.layout.parameters)] = header.layout
        self._answer_descriptions()

    def _answer_descriptions(self) -> None:
        for worker, request in list(self._describing.items()):
            count = len(request.parameters)
            if (difference := self._difference(worker, request)) is not None:
                self._refuse(worker, *difference)
            elif count in self._layouts:
                self._tell(worker, Described(self._layouts[count], request.number))
            elif worker == CHIEF:
                self._tell(worker, Described(Layout(), request.number))
            else:
                continue  # until the chief has registered as many
            del self._describing[worker]
            self._described.add(worker)

    def _difference(self, worker: int, request: Describe) -> tuple[str, str, str] | None:
        """What does not fit in a worker's description: the field, what the chief has, and what it has."""
        if self.mode is None:
            return None
        known, mine = self.layout.parameters, request.parameters
        for spec, other in zip(mine, known, strict=False):
            if spec != other:
                return "model", f"parameter {other} as the chief registered it", f"{spec} here"
        if request.mode != self.mode:
            return "mode", f"{self.mode}, as the chief has it", str(request.mode)
        if len(mine) in self._layouts or worker == CHIEF:
            return None
        if len(mine) < len(known):
            return "model", f"parameter {known[len(mine)]} as the chief registered it", "none here"
        if worker not in self._described:  # else it has a new group of parameters, and waits for the chief's
            return "model", f"the chief's {len(known)} parameters", f"also {mine[len(known)]} here"
        return None

    def _refuse(self, worker: int, field: str, expected: str, got: str) -> None:
        error = ModelMismatch(field, expected, got)
        self._tell(worker, Refused("model", error.field, error.expected, str(error.got)))

    # --- training -----------------------------------------------------------------------------------------
    def held(self, server: int | None, worker: int, seq: int, push: Push | None = None) -> None:
        """A server holds its share of a push, or every server has it in sight."""
        self._changed = True
        if push is not None and push.version > self._core.admission.step:
            raise WireError(f"push: expected a version up to {self.step}, got {push.version}")
        self.tally.heard(worker)
        if self.failure is not None:
            self._tell(worker, self.failure)
        else:
            self._on(Held(server, worker, seq, push))

    def hear(self, worker: int, request: PushRequest) -> None:
        """What a worker tells along with a push."""
        self._changed = True
        if request.numbers:
            self.tally.log(worker, request.numbers, request.logged)
        if request.batches:
            self._first_batches.heard(worker, request.batches)
        if request.state is not None and request.seq > self._core.base_seq(worker):
            self.states.bring(worker, request.seq, request.state)

    def norm(self, server: int, step: int, square: float) -> None:
        """A server's share of the norm of a step."""
        self._changed = True
        if self._norms is not None and (factor := self._norms.report(server, step, square)) is not None:
            self._scale(Scale(step, factor))

    def gather(self, worker: int, request: GatherRequest) -> None:
        """A worker gives its value, and waits for those of the others."""
        self._changed = True
        if self.failure is not None:
            self._tell(worker, self.failure)
        if (values := self._gathers.missed(request.number)) is not None:
            self._tell(worker, Gathered(request.number, values))
            return
        if request.number <= self._gathers.held:
            expected = "one whose values are still kept"
            self._tell(worker, Refused("config", "gather", expected, f"number {request.number}"))
            return
        self._gathers_changed = True
        self._gathers.attend(request.number, worker, request.value)
        self._complete_gathers()

    def _complete_gathers(self) -> None:
        self._gathers_changed = True
        for number, values in self._gathers.take_place(self.roster.awaited()):
            self.progress_at = time.monotonic()
            for worker in values:
                self._tell(worker, Gathered(number, values))

    # --- saving and stopping ------------------------------------------------------------------------------
    def wish(self, wishes: Wishes) -> None:
        """What a worker wants with a push: that the state is saved, or that the job ends."""
        self._changed = True
        if "save" in wishes:
            self._on(CutWanted())
        if "stop" in wishes:
            self.stop()

    def stop(self) -> None:
        """End the job after the step that is being collected."""
        self._on(StopWanted())

    def written(self, saved: bool) -> None:
        """The latest cut is on the disk, or could not be written."""
        self._changed = True
        self._on(CutWritten(saved))

    def _on(self, event: Event) -> None:
        self._changed = True
        if decisions := self._core.on(event):
            self.progress_at = time.monotonic()
            self.tally.count(decisions)
            if self._losses.replaces:
                self.states.count(decisions)
            self._order(decisions)

    # --- who is waited for --------------------------------------------------------------------------------
    def waiting(self, name: Callable[[int], str], holds: bool) -> WaitingReport:
        """For whom the job waits, and how long."""
        workers: Iterable[int] = self._core.waited_for() or self._gathers.missing(self.roster.awaited())
        if not workers and self._describing:
            workers = [CHIEF]
        seconds = time.monotonic() - self.progress_at
        return WaitingReport(tuple(name(worker) for worker in workers), seconds, holds)
