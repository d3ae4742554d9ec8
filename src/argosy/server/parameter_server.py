"""A parameter server: one loop that takes messages from its inbox, and passes each to whom it concerns.

Single-threaded. `OrderExecutor` does the work on this server's shard; `Coordinator`, on server 0 only,
decides; `StepMaking` goes between them. The loop also keeps the time: which task has been missing for how
long, and which has gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from argosy.cluster.lease import Lease
from argosy.cluster.loss_policy import LossPolicy
from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ArgosyError, WireError
from argosy.events import say
from argosy.protocol.asking import Stacks, StacksOffer, StatusRequest, WaitingReport, WaitingRequest
from argosy.protocol.header import BetweenServers, Header
from argosy.protocol.joining import (
    Admitted,
    Describe,
    Fail,
    GradientMemory,
    Hello,
    JobOver,
    Leave,
    Left,
    Refused,
    Register,
    SlotValues,
)
from argosy.protocol.saving import OpenDirectory, OwnState, ResumeRequest, ShardSaved
from argosy.protocol.training import (
    BlockAhead,
    GatherRequest,
    HeldNotice,
    NormReport,
    Orders,
    PushRequest,
    Scale,
    StopRequest,
)
from argosy.server.checkpointing import ShardSaving
from argosy.server.connected_tasks import ConnectedTasks
from argosy.server.coordinator import Coordinator
from argosy.server.deferred_answers import DeferredAnswers
from argosy.server.durable_memory import Memory, OrdinaryMemory
from argosy.server.handshake import Handshake
from argosy.server.job_end import JobEnd
from argosy.server.lost_gradients import LostGradients
from argosy.server.missing_tasks import MissingTasks
from argosy.server.order_executor import OrderExecutor
from argosy.server.peer_links import PeerLinks
from argosy.server.recovery import Recovery
from argosy.server.stall_watch import StallWatch
from argosy.server.status_report import StatusAnswers
from argosy.server.step_making import StepMaking
from argosy.server.worker_requests import WorkerRequests, resume_point
from argosy.wire.channel import Arrival, Channel, Delivery, Departure, Garbage, Listener, Peer
from argosy.wire.message import Message

if TYPE_CHECKING:
    import torch

# How often a server looks whether the others have answered its hello, in seconds.
_LINK_EVERY = 0.02
# How often it looks at the clock while messages keep coming.
_LOOK_EVERY = 0.1
_NOTHING_ASKED = WaitingRequest()
_LEASE = Lease()
_LOSSES = LossPolicy()


class ParameterServer:
    """One ps task. `connect` opens a channel to another server. `memory` may outlive this process, and
    `losses` says whether a task that died is started again.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        index: int,
        listener: Listener,
        connect: Callable[[Task], Channel],
        wait: float,
        lane: str = "",
        lease: Lease = _LEASE,
        memory: Memory | None = None,
        losses: LossPolicy = _LOSSES,
    ) -> None:
        self.task = Task("ps", index)
        self._cluster = cluster
        self._memory = memory or OrdinaryMemory()
        # What leaves this server tells of what it keeps: so it is kept first.
        self._deferred = DeferredAnswers(listener) if self._memory.lasts else None
        self._listener = listener = self._deferred or listener
        self._workers = list(cluster.tasks("worker"))
        self._lease = lease
        self._connected = ConnectedTasks(cluster, self.task, self._is_here, lease)
        self.stop_wanted = False  # set by a signal
        self._looked = 0.0
        self._unsettled = True
        self._saving = ShardSaving(index, cluster.count("ps"), self._memory)
        self._executor = self._make_executor(index)
        self._coordinator = self._make_coordinator(losses) if index == 0 else None
        self.status = StatusAnswers(cluster, listener, self._coordinator, self._waiting, self._connected)
        self._requests = WorkerRequests(
            cluster, self._executor, self._saving, self._coordinator, self._memory
        )
        self._links = PeerLinks(cluster, self.task, connect, bool(lane), self._memory, losses.replaces)
        self._job_end = JobEnd(str(self.task), self._coordinator, self._saving, self._memory)
        self._handshake = Handshake(cluster, listener, self._connected, self._links, self._coordinator, lane)
        self._missing_tasks = MissingTasks(
            self.task,
            cluster,
            self._coordinator,
            self._links,
            self._handshake,
            self._executor.buffers,
            wait,
            lease,
            losses.replaces,
        )
        self._lost_gradients = LostGradients(self.task, cluster, self._executor, self._coordinator)
        self._stall = self._make_stall_watch(losses.stall_after)
        self._recovery = self._make_recovery()
        self._steps = StepMaking(self._executor, self._coordinator, self._links, self.status, self._recovery)
        if self._memory.found:
            self._recovery.recall()
            say(f"{self.task} is back at step {self._executor.step}")

    def _settle(self) -> None:
        """Keep what has come of a message, and then send what follows from it."""
        self._recovery.keep()
        if self._deferred is not None:
            self._deferred.flush()
        self._links.flush()

    def _make_executor(self, index: int) -> OrderExecutor:
        return OrderExecutor(
            index,
            self._reply,
            lambda step, square: self._steps.report_norm(step, square),
            self._copies,
            self._saving,
            len(self._workers),
            self._memory,
            self._settle,
        )

    def _make_recovery(self) -> Recovery:
        talking = (self._requests, self._links, self._connected, self._handshake)
        return Recovery(self._memory, self._executor, self._saving, self._coordinator, *talking)

    def _make_stall_watch(self, stall_after: float | None) -> StallWatch | None:
        if self._coordinator is None or stall_after is None:
            return None
        head, links, end = self._coordinator, self._links, self._job_end
        return StallWatch(stall_after, self._cluster, head, links, self.status, self._waiting, end)

    def _make_coordinator(self, losses: LossPolicy) -> Coordinator:
        return Coordinator(
            self._cluster.count("ps"),
            self._cluster.count("worker"),
            tell=lambda worker, header: self._reply(worker, header, ()),
            order=lambda decisions: self._steps.order(decisions),
            scale=lambda scale: self._steps.scale(scale),
            losses=losses,
        )

    # --- the loop -----------------------------------------------------------------------------------------
    def run(self) -> None:
        """Serve until the job is over; raises if it ended badly."""
        try:
            while not (self._look_around() and self._job_end.is_over(self._looked)):
                self._step(self._listener.receive(timeout=self._patience()))
            self._tell_the_end()
            self._job_end.end()
        finally:
            self._saving.close()
            self._links.close()
            self._listener.close()

    def _tell_the_end(self) -> None:
        """The coordinator ends when the other servers know that the job is over, or cannot be told."""
        if self._coordinator is None:
            return
        self._links.tell(self._job_end.verdict())
        self._settle()
        deadline = time.monotonic() + self._lease.seconds
        while not self._links.has_told() and (now := time.monotonic()) < deadline:
            self._step(self._listener.receive(timeout=_LINK_EVERY))
            self._links.keep_time(now)

    def _patience(self) -> float:
        """How long to wait for a message before looking around."""
        if not self._links.ready or self._saving.busy or self.status.busy:
            return _LINK_EVERY
        return _LOOK_EVERY if self._links.unsettled else 1.0

    def _look_around(self) -> bool:
        """Keep the time when there is a reason to, which a push in the middle of training is not."""
        now = time.monotonic()
        if not self._unsettled and now - self._looked < _LOOK_EVERY:
            return False
        self._unsettled = False
        self._looked = now
        self._keep_time(now)
        self._settle()
        return True

    def _step(self, arrival: Arrival | None) -> None:
        match arrival:
            case Delivery(peer, message):
                self._deliver(peer, message)
                self._settle()
            case Departure(peer, final):
                self._unsettled = True
                self._connected.depart(peer, final)
                self._handshake.depart(peer)
            case Garbage(peer, reason) if (task := self._connected.task(peer)) is not None:
                say(f"{self.task} threw away a message of {task}: {reason}")

    def _deliver(self, peer: Peer, message: Message[Header]) -> None:
        header = message.header
        task = self._connected.task(peer)
        try:
            if isinstance(header, Hello):
                self._recovery.lives_changed = True
                self._handshake.greet(peer, header)
            elif isinstance(header, StatusRequest | StacksOffer | Stacks):
                self.status.hear(peer, header)
            elif task is None:
                self._handshake.refuse(peer, header)
            else:
                self._connected.heard(peer, task)
                if task.job == "ps":
                    self._from_server(task, header)
                else:
                    self._from_worker(task, message)
        except WireError as error:
            say(f"{self.task} refused a {type(header).__name__} of {task}: {error}")
            self._listener.send(peer, Refused("protocol", "message", "a well-formed one", str(error)))
        except ArgosyError as error:
            self._fail(task or self.task, str(error))

    def _is_here(self, task: Task) -> bool:
        if task.job == "ps":
            return True
        return self._coordinator is not None and self._coordinator.is_present(task.index)

    # --- messages -----------------------------------------------------------------------------------------
    def _from_worker(self, task: Task, message: Message[Header]) -> None:
        header = message.header
        match header:
            case PushRequest():
                self._steps.push(task.index, Message(header, message.tensors))
            case Register() | SlotValues() | GradientMemory() | OpenDirectory():
                answer = self._requests.answer(task, Message(header, message.tensors))
                self._reply(task.index, answer, ())
            case BlockAhead():
                self._executor.pushes.keep_ahead(task.index, Message(header, message.tensors))
            case OwnState():
                self._saving.give_state(task.index, header)
            case WaitingRequest():
                self._reply(task.index, self._waiting(task.index, header), ())
            case ResumeRequest() if self._coordinator is not None:
                point = resume_point(self._coordinator, self._saving, task.index, header.number)
                self._reply(task.index, point, ())
            case Describe() if self._coordinator is not None:
                self._coordinator.describe(task.index, header)
            case GatherRequest() if self._coordinator is not None:
                self._coordinator.gather(task.index, header)
            case Leave():
                self._leave(task)
            case Fail():
                self._reply(task.index, Left(), ())
                self._fail(header.task or task, header.reason)
                self._leave(task)
            case _:
                raise WireError(f"a worker does not send {type(header).__name__}")

    def _from_server(self, task: Task, header: Header) -> None:
        if (told := self._links.take(task, header)) is not None:
            self._obey(task, told)

    def _obey(self, task: Task, header: BetweenServers) -> None:
        match header:
            case Orders() if task.index == 0:
                self._steps.obey(header)
            case HeldNotice(worker, seq) if self._coordinator is not None:
                self._coordinator.held(task.index, worker, seq)
            case NormReport(step, square) if self._coordinator is not None:
                self._coordinator.norm(task.index, step, square)
            case Fail(reason, failed) if self._coordinator is not None:
                self._coordinator.fail(failed or task, reason)
            case Admitted(worker, life) if task.index == 0:
                self._recovery.lives_changed = True
                self._handshake.admit(worker, life)
            case ShardSaved() if self._coordinator is not None:
                self._saving.collect(task.index, header)
            case StopRequest() if self._coordinator is not None:
                self._coordinator.stop()
            case Scale(step, factor) if task.index == 0:
                self._executor.expect_factor(step, factor)
                self._executor.go_on()
            case JobOver() if task.index == 0:
                self._job_end.hear(header)
                self._unsettled = True
                self._links.say_state_soon()  # the coordinator waits for this before it ends
            case _:
                raise WireError(f"{task} does not send {type(header).__name__} to {self.task}")

    def _advance_saving(self) -> None:
        """See what has been written in the background."""
        report = self._saving.written()
        if report is not None and self._coordinator is None:
            self._links.tell(report)
        if self._coordinator is not None:
            outcome = self._saving.published(self._coordinator.roster.in_training())
            if outcome is not None:
                self._coordinator.written(saved=not outcome.error)

    @property
    def saves(self) -> bool:
        """Whether this job keeps checkpoints."""
        return self._saving.planned

    def _stop(self) -> None:
        """This server was told to end: end the job after the next step, in good order."""
        if self._coordinator is not None:
            self._coordinator.stop()
        else:
            self._links.tell(StopRequest())

    def _leave(self, task: Task) -> None:
        self._unsettled = True
        self._reply(task.index, Left(), ())
        if self._coordinator is not None and self._coordinator.is_present(task.index):
            self._executor.buffers.forget(task.index)
            self._coordinator.finish(task.index)

    # --- to others ----------------------------------------------------------------------------------------
    def _reply(self, worker: int, header: Header, tensors: Sequence[torch.Tensor]) -> None:
        if (peer := self._connected.peer(self._workers[worker])) is not None:
            self._listener.send(peer, header, tensors)

    def _copies(self, worker: int) -> bool:
        peer = self._connected.peer(self._workers[worker])
        return peer is not None and self._listener.copies(peer)

    def _fail(self, task: Task | str, reason: str) -> None:
        self._unsettled = True
        if self._coordinator is not None:
            self._coordinator.fail(task, reason)
        else:
            self._links.tell(Fail(reason, str(task)))

    def _waiting(self, worker: int = 0, ask: WaitingRequest = _NOTHING_ASKED) -> WaitingReport:
        holds = self._executor.holds(worker, ask.seq, ask.anew)
        if silent := self._links.silent():
            names = tuple(self._cluster.describe(task) for task, _ in silent)
            return WaitingReport(names, max(seconds for _, seconds in silent), holds)
        if self._coordinator is None:
            return WaitingReport((), 0.0, holds)
        return self._coordinator.waiting(lambda w: self._cluster.describe(Task("worker", w)), holds)

    # --- time ---------------------------------------------------------------------------------------------
    def _keep_time(self, now: float) -> None:
        if not self._links.ready and self._links.advance():
            self._recovery.lives_changed = True
            self._handshake.greet_early()
        if self._saving.busy:
            self._advance_saving()
        if self.stop_wanted:
            self.stop_wanted = False
            self._stop()
        self._links.keep_time(now)
        self.status.look(now)
        if self._stall is not None:
            self._stall.look(now)
        for task in self._connected.overdue(now, self._reaches, self._listener.stands_still):
            self._recovery.lives_changed = True
            self._missing_tasks.lose(task)
        self._missing_tasks.look(now)
        if (lost := self._lost_gradients.look(now)) is not None:
            self._fail(*lost)

    def _reaches(self, peer: Peer) -> bool:
        """Whether a connection that ended was made anew; its task may have had nothing to say since."""
        listener = self._listener if self._deferred is None else self._deferred.listener
        return listener.send(peer, WaitingReport((), 0.0))
