"""A parameter server: one loop that takes messages from its inbox, and passes each to whom it concerns.

Single-threaded. `Carrier` does the work on this server's shard, `Coordinator` (on server 0 only) decides.
The loop also keeps the time: who has been missing for how long, and who has gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from argosy.cluster.settings import NOTICE_EVERY
from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ArgosyError, ConfigError, JobFailed, TaskLost, WaitTimeout, WireError
from argosy.events import say, say_waiting
from argosy.modes import Sync
from argosy.store.attendance import Attendance
from argosy.store.carrier import Carrier
from argosy.store.coordinator import Coordinator
from argosy.store.layout import check_layout
from argosy.store.links import Links
from argosy.store.status import report
from argosy.update.decisions import Decision, Push
from argosy.wire.channel import Arrival, Channel, Delivery, Departure, Garbage, Listener, Peer
from argosy.wire.message import Message
from argosy.wire.protocol import (
    Admitted,
    Ask,
    Bucket,
    Describe,
    Fail,
    Header,
    HeldNotice,
    Hello,
    JobOver,
    Leave,
    Left,
    Meet,
    NormReport,
    Orders,
    PushRequest,
    Refused,
    Register,
    Registered,
    Scale,
    Slots,
    SlotsKept,
    StatusRequest,
    Waiting,
    Welcome,
)

if TYPE_CHECKING:
    import torch

# How often a server looks whether the others have answered its hello, in seconds.
_LINK_EVERY = 0.02
# How often it looks at the clock while messages keep coming.
_LOOK_EVERY = 0.1
# After a failure, the workers have so long to hear of it before the servers end anyway.
FAILURE_GRACE = 10.0


class ParameterServer:
    """One ps task. `connect` opens a channel to another server."""

    def __init__(
        self,
        cluster: ClusterSpec,
        index: int,
        listener: Listener,
        connect: Callable[[Task], Channel],
        wait: float,
        lane: str = "",
    ) -> None:
        self.task = Task("ps", index)
        self._cluster = cluster
        self._listener = listener
        self._wait = wait
        self._lane = lane
        self._attendance = Attendance(cluster, self.task, self._is_here)
        self._early: dict[Peer, Hello] = {}  # workers that came before the servers had found each other
        self._admitted: dict[int, str] = {}  # the life of each worker that the coordinator has let in
        self._untold: list[tuple[int, PushRequest]] = []  # pushes that the other servers only see
        self._over: JobOver | None = None
        self._started = self._last_notice = time.monotonic()
        self._failed_at: float | None = None
        self._looked = 0.0
        self._unsettled = True
        self._carrier = Carrier(index, self._reply, self._report_norm, self._copies, cluster.count("worker"))
        self._coordinator = self._make_coordinator() if index == 0 else None
        self._links = Links(cluster, self.task, connect, use_lane=bool(lane))

    def _make_coordinator(self) -> Coordinator:
        return Coordinator(
            self._cluster.count("ps"),
            self._cluster.count("worker"),
            tell=lambda worker, header: self._reply(worker, header, ()),
            order=self._order,
            scale=self._scale,
        )

    # --- the loop -----------------------------------------------------------------------------------------
    def run(self) -> None:
        """Serve until the job is over; raises if it ended badly."""
        try:
            while not (self._look_around() and self._is_over()):
                self._step(self._listener.receive(timeout=1.0 if self._links.ready else _LINK_EVERY))
            self._end()
        finally:
            self._links.close()
            self._listener.close()

    def _look_around(self) -> bool:
        """Keep the time when there is a reason to, which a push in the middle of training is not."""
        now = time.monotonic()
        if not self._unsettled and now - self._looked < _LOOK_EVERY:
            return False
        self._unsettled = False
        self._looked = now
        self._keep_time(now)
        return True

    def _step(self, arrival: Arrival | None) -> None:
        match arrival:
            case Delivery(peer, message):
                self._deliver(peer, message)
            case Departure(peer):
                self._unsettled = True
                self._attendance.depart(peer)
                self._early.pop(peer, None)
            case Garbage(peer, reason) if (task := self._attendance.task(peer)) is not None:
                say(f"{self.task} threw away a message of {task}: {reason}")

    def _deliver(self, peer: Peer, message: Message[Header]) -> None:
        header = message.header
        task = self._attendance.task(peer)
        try:
            if isinstance(header, Hello):
                self._greet(peer, header)
            elif isinstance(header, StatusRequest):
                self._listener.send(peer, report(self._cluster, self._coordinator, self._waiting()))
            elif task is None:
                self._listener.send(peer, Refused("protocol", "peer", "hello first", type(header).__name__))
            else:
                self._attendance.heard(peer, task)
                self._from(task, message)
        except WireError as error:
            say(f"{self.task} refused a {type(header).__name__} of {task}: {error}")
            self._listener.send(peer, Refused("protocol", "message", "a well-formed one", str(error)))
        except ArgosyError as error:
            self._fail(task or self.task, str(error))

    def _from(self, task: Task, message: Message[Header]) -> None:
        if task.job == "ps":
            self._from_server(task, message.header)
        else:
            self._from_worker(task, message)

    def _greet(self, peer: Peer, hello: Hello) -> None:
        if self._is_early(hello):
            self._early[peer] = hello
            missing = tuple(self._cluster.describe(task) for task in self._links.missing())
            if missing:
                self._listener.send(peer, Waiting(missing, time.monotonic() - self._started))
            return
        try:
            task, again = self._attendance.greet(peer, hello)
        except ConfigError as error:
            refusal = Refused("config", error.field, error.expected, str(error.got), error.remedy)
            self._listener.send(peer, refusal)
            return
        coordinator = self._coordinator
        if coordinator is None or task.job == "ps":
            self._listener.send(peer, Welcome(lane=self._lane))
        elif coordinator.failure is not None:
            self._listener.send(peer, coordinator.failure)
        else:
            if not again:
                self._links.tell_all(Admitted(task.index, hello.life))
            base = coordinator.arrive(task.index, again)
            self._listener.send(peer, Welcome(base, self._lane, coordinator.meetings_held))

    def _is_early(self, hello: Hello) -> bool:
        """Whether a worker must wait: for the servers to find each other, or for the coordinator's word.

        Who takes part is the coordinator's to say: a stranger who calls himself a worker waits here forever.
        """
        if not hello.task.startswith("/job:worker/"):
            return False
        stranger = self._coordinator is None and hello.life not in self._admitted.values()
        return stranger or not self._links.ready

    def _greet_early(self) -> None:
        early, self._early = self._early, {}
        for peer, hello in early.items():
            self._greet(peer, hello)

    def _is_here(self, task: Task) -> bool:
        if task.job == "ps":
            return True
        return self._coordinator is not None and self._coordinator.is_present(task.index)

    # --- messages -----------------------------------------------------------------------------------------
    def _from_worker(self, task: Task, message: Message[Header]) -> None:
        header = message.header
        match header:
            case PushRequest():
                self._push(task.index, Message(header, message.tensors))
            case Register():
                self._register(task, Message(header, message.tensors))
            case Bucket():
                self._carrier.keep_bucket(task.index, Message(header, message.tensors))
            case Slots():
                self._carrier.keep_slots(task.index, message.tensors)
                self._reply(task.index, SlotsKept(), ())
            case Ask():
                self._reply(task.index, self._waiting(task.index, header.seq), ())
            case Describe() if self._coordinator is not None:
                self._coordinator.describe(task.index, header)
            case Meet() if self._coordinator is not None:
                self._coordinator.meet(task.index, header)
            case Leave():
                self._leave(task)
            case Fail():
                self._reply(task.index, Left(), ())
                self._fail(task, header.reason)
                self._leave(task)
            case _:
                raise WireError(f"a worker does not send {type(header).__name__}")

    def _from_server(self, task: Task, header: Header) -> None:
        match header:
            case HeldNotice(worker, seq) if self._coordinator is not None:
                self._coordinator.held(task.index, worker, seq)
            case NormReport(step, square) if self._coordinator is not None:
                self._coordinator.norm(task.index, step, square)
            case Fail(reason) if self._coordinator is not None:
                self._coordinator.fail(task, reason)
            case Admitted(worker, life) if task.index == 0:
                self._admitted[worker] = life
                self._greet_early()
            case Orders(decisions, pushes) if task.index == 0:
                for worker, request in pushes:
                    self._carrier.hold_shared(worker, request)
                self._carrier.carry_out(decisions)
            case Scale(step, factor) if task.index == 0:
                self._carrier.scale(step, factor)
            case JobOver() if task.index == 0:
                self._over = header
                self._unsettled = True
            case _:
                raise WireError(f"{task} does not send {type(header).__name__} to {self.task}")

    def _push(self, worker: int, message: Message[PushRequest]) -> None:
        header = message.header
        if not self._carrier.hold(worker, message):
            return
        if self._coordinator is None:
            self._links.tell(0, HeldNotice(worker, header.seq))
        else:
            push = Push(worker, header.seq, header.version, header.kind, header.weight)
            if header.numbers:
                self._coordinator.tally.log(worker, header.numbers)
            if header.shared:
                plain = header
                if header.buffers or header.numbers:
                    plain = msgspec.structs.replace(header, buffers=(), numbers={})
                self._untold.append((worker, plain))
            self._coordinator.held(None if header.shared else 0, worker, header.seq, push)
        self._carrier.add_early()

    def _register(self, task: Task, message: Message[Register]) -> None:
        if task != Task("worker", 0):
            raise WireError("only the chief registers")
        check_layout(message.header.layout, self._cluster.count("ps"), len(message.header.optimizer.groups))
        self._carrier.register(message)
        self._reply(0, Registered(), ())
        if self._coordinator is not None:
            self._coordinator.register(message.header)

    def _leave(self, task: Task) -> None:
        self._unsettled = True
        self._reply(task.index, Left(), ())
        if self._coordinator is not None and self._coordinator.is_present(task.index):
            self._carrier.buffers.forget(task.index)
            self._coordinator.finish(task.index)

    # --- to others ----------------------------------------------------------------------------------------
    def _reply(self, worker: int, header: Header, tensors: Sequence[torch.Tensor]) -> None:
        if (peer := self._attendance.peer(Task("worker", worker))) is not None:
            self._listener.send(peer, header, tensors)

    def _copies(self, worker: int) -> bool:
        peer = self._attendance.peer(Task("worker", worker))
        return peer is not None and self._listener.copies(peer)

    def _order(self, decisions: Sequence[Decision]) -> None:
        self._links.tell_all(Orders(tuple(decisions), tuple(self._untold)))
        self._untold.clear()
        self._carrier.carry_out(decisions)

    def _scale(self, scale: Scale) -> None:
        self._links.tell_all(scale)
        self._carrier.scale(scale.step, scale.factor)

    def _report_norm(self, step: int, square: float) -> None:
        if self._coordinator is not None:
            self._coordinator.norm(0, step, square)
        else:
            self._links.tell(0, NormReport(step, square))

    def _fail(self, task: Task, reason: str) -> None:
        self._unsettled = True
        if self._coordinator is not None:
            self._coordinator.fail(task, reason)
        else:
            self._links.tell(0, Fail(reason))

    def _waiting(self, worker: int = 0, seq: int = 0) -> Waiting:
        holds = self._carrier.holds(worker, seq)
        if self._coordinator is None:
            return Waiting((), 0.0, holds)
        return self._coordinator.waiting(lambda w: self._cluster.describe(Task("worker", w)), holds)

    # --- time ---------------------------------------------------------------------------------------------
    def _keep_time(self, now: float) -> None:
        if not self._links.ready and self._links.advance():
            self._greet_early()
        if now - self._last_notice >= NOTICE_EVERY:
            self._last_notice = now
            for task in self._missing():
                say_waiting(self._cluster.describe(task), now - self._started)
        for task in self._attendance.overdue():
            self._lose(task)
        if now - self._started > self._wait:
            self._give_up_on(self._missing())

    def _missing(self) -> list[Task]:
        servers = self._links.missing()
        if self._coordinator is None:
            return servers
        early = {hello.task for hello in self._early.values()}
        workers = [Task("worker", worker) for worker in self._coordinator.roster.missing()]
        return servers + [task for task in workers if str(task) not in early]

    def _give_up_on(self, missing: Sequence[Task]) -> None:
        if not missing:
            return
        error = WaitTimeout(
            f"{self.task} gave up waiting", [self._cluster.describe(task) for task in missing], self._wait
        )
        coordinator = self._coordinator
        nobody = coordinator is None or coordinator.mode is None
        if (
            nobody
            or isinstance(coordinator and coordinator.mode, Sync)
            or any(t.job == "ps" for t in missing)
        ):
            if coordinator is not None:
                coordinator.fail(self.task, str(error))
            raise error
        say(f"{error}; the job goes on without")
        for task in missing:
            self._lose(task)

    def _lose(self, task: Task) -> None:
        if task.job == "ps":
            error = TaskLost(self._cluster.describe(task), "its connection ended")
            if self._coordinator is None:
                raise error
            self._coordinator.fail(task, str(error))
        elif self._coordinator is not None and task.index in set(self._coordinator.roster.awaited()):
            say(f"{self._cluster.describe(task)} is gone; the job goes on without it")
            self._carrier.buffers.forget(task.index)
            self._coordinator.lose(task.index)

    def _is_over(self) -> bool:
        if self._coordinator is None:
            return self._over is not None
        if self._coordinator.roster.everyone_left():
            return True
        if self._coordinator.failure is None:
            return False
        self._failed_at = self._failed_at or time.monotonic()
        present = any(self._coordinator.is_present(w) for w in self._coordinator.roster.awaited())
        return not present or time.monotonic() - self._failed_at > FAILURE_GRACE

    def _end(self) -> None:
        over = self._over or (self._coordinator and self._coordinator.failure) or JobOver()
        if self._coordinator is not None:
            self._links.tell_all(over)
        if over.task:
            raise JobFailed(over.task, over.reason)
