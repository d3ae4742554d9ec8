"""One client's work on one task: its values, its templates, its random numbers, and the thread that runs it.

The host's loop hands messages over and parcels in; all else happens in the session's own thread, and in the
helpers of its graph. What goes wrong stays with the values that depend on it, until the client asks for one.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import torch

from argosy.cluster.spec import Address
from argosy.errors import WireError
from argosy.events import say
from argosy.protocol.remote_work import Fault, Packing, Parcel, Reply
from argosy.remote.operations.instructions import Template
from argosy.remote.operations.kernel import HEAVY, Compiled
from argosy.remote.task.faults import Faults
from argosy.remote.task.local_connections import Neighbours
from argosy.remote.task.program import Plan
from argosy.remote.task.reading import readers
from argosy.remote.task.scheduler import Graph, Group, Step, Value, prepare_thread
from argosy.remote.task.value_exchange import Mail
from argosy.remote.transport.tensor_codec import pack, unpack
from argosy.torch_private import storage_key

# With so many operations waiting, no more are read: what a client sends ahead lies in its messages then.
_AHEAD = 4096

Batch = tuple[list[Any], Sequence[torch.Tensor]]


class Outside(Protocol):
    """What a session needs of its host."""

    task: str

    def device(self, name: str) -> torch.device:
        """The device of this name; a WireError if this task has none."""

    def answer(self, client: str, reply: Reply, frames: Sequence[torch.Tensor] = ()) -> None:
        """Send to the client."""

    def address(self, task: str) -> Address:
        """Where a task is reached."""

    def cut_off(self, client: str, reason: str) -> None:
        """Tell a client that its session has ended."""

    def forward(self, task: str, parcel: Parcel, frames: Sequence[torch.Tensor] = ()) -> None:
        """Send to a task of another machine."""


class Session:
    """The state of one client. Made and fed by the host; `close` from anywhere."""

    def __init__(self, client: str, host: Outside, helpers: int, look: float = 0.0) -> None:
        self.client = client
        self.host = host
        self.graph = Graph(helpers)
        self.graph.on_ready = self.nudge
        self.values: dict[int, Value] = {}
        self.templates: dict[int, Compiled] = {}
        self.generator = torch.Generator()
        self.counts: Counter[str] = Counter()
        self.randomness = Value(Group())
        self._inbox: deque[Batch] = deque()
        self.mail = Mail(self)
        self.neighbours = Neighbours(client, self.mail.parcel, self.work, look)
        self._waits: list[int] = []
        self.faults = Faults(host.task)
        self._closed = False
        self.plans: dict[int, Plan] = {}
        self._readers = readers(self)
        self._thread = threading.Thread(target=self._loop, name=f"argosy-session-{client[:8]}", daemon=True)
        self._thread.start()

    def answer(self, reply: Reply, frames: Sequence[torch.Tensor] = ()) -> None:
        """Tell the client."""
        if (lane := self.neighbours.to_client) is not None:
            lane.send(reply, frames)
        else:
            self.host.answer(self.client, reply, frames)

    # --- from the host's loop -----------------------------------------------------------------------------
    def work(self, records: list[Any], frames: Sequence[torch.Tensor]) -> None:
        """A message of the client."""
        self._inbox.append((records, frames))
        self.nudge()

    def close(self) -> None:
        """Stop after the step that is running, and let go of everything."""
        self._closed = True
        self.nudge()

    @property
    def alive(self) -> bool:
        """Whether its thread still runs."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait until the session's threads have ended."""
        self._thread.join()

    # --- the session's own thread -------------------------------------------------------------------------
    def nudge(self) -> None:
        """Let the session's thread look for what is ready."""
        self.neighbours.rouse()

    def _loop(self) -> None:
        prepare_thread()
        self.neighbours.begin()
        try:
            while not self._closed:
                self._turn()
        except Exception as error:
            # Only a client that does not keep to the protocol comes here; it must not take the task with it.
            say(f"{self.host.task}: client {self.client} is cut off: {traceback.format_exc()}")
            self.host.cut_off(self.client, f"{type(error).__name__}: {error}")
        finally:
            self._closed = True
            self.graph.close()
            self.values.clear()
            self.templates.clear()
            self.plans.clear()
            self.neighbours.close()

    def _turn(self) -> None:
        """The next thing to do: what is ready, what is to be sent or answered, what has come; or sleep."""
        if (step := self.graph.take(only_small=bool(self._inbox))) is not None:
            if self.mail.outgoing and not step.sends:
                self.mail.send_parcels()
            step.run()
            if step.sends:
                self.mail.leaving.append(step)
            else:
                self.graph.finish(step)
        elif self.mail.outgoing:
            self.mail.send_parcels()
        elif self._waits and not self.graph.unfinished:
            self._answer_waits()
        elif self._inbox and self.graph.unfinished < _AHEAD:
            self.read(*self._inbox.popleft())
        else:
            self.neighbours.sleep(self._has_news)

    def _has_news(self) -> bool:
        """Whether there is something to do but what neighbours may bring."""
        if self._closed or not self.graph.idle:
            return True
        return (bool(self._inbox) and self.graph.unfinished < _AHEAD) or (
            bool(self._waits) and not self.graph.unfinished
        )

    def read(self, records: list[Any], frames: Sequence[torch.Tensor]) -> None:
        """Carry records out, in order: run what can be run, take in what has to wait."""
        position, end = 0, len(records)
        templates, values = self.templates, self.values
        while position < end:
            number = records[position]
            if number >= 0:
                compiled = templates[number]
                first = position + 3
                last = first + compiled.inputs
                self.run(
                    compiled,
                    [values[each] for each in records[first:last]],
                    records[last : last + compiled.floats],
                    records[position + 1],
                    records[position + 2],
                )
                position += compiled.width
            else:
                width, reader = self._readers[number]
                reader(*records[position + 1 : position + width], frames)
                position += width

    def run(
        self, compiled: Compiled, inputs: list[Value], floats: list[float], site: int, first: int
    ) -> None:
        """An operation: now, if it waits for nothing."""
        outputs = []
        joint = Group() if compiled.joint else None
        for number in range(compiled.outputs):
            view = compiled.views[number]
            value = Value((joint or Group()) if view < 0 else inputs[view].group)
            self.values[first + number] = value
            outputs.append(value)
        if self.mail.outgoing and not compiled.light:
            self.mail.send_parcels()
        graph = self.graph
        if not graph.unfinished and not compiled.heavy:
            self.execute(compiled, inputs, outputs, floats, site)
            return
        step = Step(lambda: self.execute(compiled, inputs, outputs, floats, site), compiled.heavy)
        writes = [inputs[each] for each in compiled.mutates]
        reads = inputs
        if compiled.random:
            reads, writes = [*inputs, self.randomness], [*writes, self.randomness]
        self.submit(step, reads, writes, outputs)

    def submit(
        self,
        step: Step,
        reads: Sequence[Value],
        writes: Sequence[Value],
        outputs: Sequence[Value] = (),
        after: Sequence[Step] = (),
    ) -> None:
        """Run a step now or when its time has come."""
        if writes and self.mail.outgoing:
            self.mail.send_parcels()  # of steps that the graph does not know, as they ran at once
        if self.graph.add(step, reads, writes, after):
            step.run()
            step.done = True
            step.let_go()
            return
        for value in outputs:
            value.maker = step
            if value.group.writer is None and value.group not in [each.group for each in reads]:
                value.group.writer = step

    def execute(
        self,
        compiled: Compiled,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        floats: Sequence[float],
        site: int,
    ) -> None:
        """Run an operation; its outputs, and what it writes to, hold the result or the fault."""
        tensors = []
        for value in inputs:
            if value.fault is not None or value.group.fault is not None:
                self._fail(value.fault or value.group.fault, inputs, compiled.mutates, outputs)
                return
            tensors.append(value.tensor)
        began = time.perf_counter()
        try:
            for position in compiled.mutates:
                inputs[position].group.before_writing()
            results = compiled.call(tensors, floats, self.generator)
        except Exception as error:
            fault = self.faults.add(compiled.name, site, error)
            self._fail(fault, inputs, compiled.mutates, outputs)
            return
        compiled.heavy = time.perf_counter() - began > HEAVY
        for value, tensor in zip(outputs, results, strict=True):
            value.tensor = tensor

    @staticmethod
    def _fail(
        fault: Fault | None, inputs: Sequence[Value], mutates: Sequence[int], outputs: Sequence[Value]
    ) -> None:
        for value in outputs:
            value.fault = fault
        for position in mutates:
            inputs[position].group.fault = fault

    # --- records other than operations --------------------------------------------------------------------
    def define(self, wire: Any, _: Sequence[torch.Tensor]) -> None:
        """DEFINE"""
        try:
            template = msgspec.convert(wire, Template)
        except msgspec.ValidationError as error:
            raise WireError(f"template: {error}") from None
        self.templates[template.number] = Compiled(template, self.host.device(template.device))

    def put(self, value: int, packing: Any, frame: int, count: int, frames: Sequence[torch.Tensor]) -> None:
        """PUT"""
        made = self.values[value] = Value(Group())
        made.tensor = unpack(msgspec.convert(packing, Packing), frames[frame : frame + count])

    def send(self, value: int, task: str, there: int, site: int, _: Sequence[torch.Tensor]) -> None:
        """SEND"""
        self.mail.hand_over(self.values[value], task, there, site)

    def expect(self, value: int, task: str, _: Sequence[torch.Tensor]) -> None:
        """EXPECT"""
        self.values[value] = self.mail.await_parcel(value, task, 0)

    def fetch(self, request: int, wanted: list[int], _: Sequence[torch.Tensor]) -> None:
        """FETCH"""
        values = [self.values[each] for each in wanted]
        step = Step(lambda: self._fetch(request, values))
        step.urgent = True
        self.submit(step, values, [])

    def _fetch(self, request: int, values: Sequence[Value]) -> None:
        packings, frames = [], []
        for value in values:
            fault = value.fault or value.group.fault
            if fault is None:
                try:
                    packing, bytes_of_it = pack(value.tensor, copy=self.neighbours.to_client is None)
                except Exception as error:
                    fault = self.faults.add("fetch", -1, error)
            if fault is not None:
                self.answer(Reply(request, [], fault))
                return
            packings.append(packing)
            frames += bytes_of_it
        self.answer(Reply(request, packings), frames)

    def record(
        self, plan: int, records: list[Any], feeds: list[int], kept: list[int], made: list[int], _: Any
    ) -> None:
        """RECORD"""
        self.plans[plan] = Plan(records, feeds, kept, dict(self.templates))

    def replay(
        self,
        number: int,
        turn: int,
        feeds: list[Any],
        binds: list[Any],
        outputs: list[Any],
        frames: Sequence[torch.Tensor],
    ) -> None:
        """REPLAY"""
        if self.mail.outgoing:
            self.mail.send_parcels()
        self.plans[number].replay(self, turn, feeds, binds, outputs, frames)

    def unrecord(self, plan: int, _: Sequence[torch.Tensor]) -> None:
        """UNRECORD"""
        if (gone := self.plans.pop(plan, None)) is not None:
            self.counts += gone.count()

    def alias(self, value: int, other: int, _: Sequence[torch.Tensor]) -> None:
        """ALIAS"""
        self.values[other] = self.values[value]

    def seen(self, error: int, _: Sequence[torch.Tensor]) -> None:
        """SEEN"""
        self.faults.see(error)

    def seed(self, seed: int, _: Sequence[torch.Tensor]) -> None:
        """SEED"""
        step = Step(lambda: _seed(self.generator, seed))
        self.submit(step, [self.randomness], [self.randomness])

    def drop(self, values: list[int], _: Sequence[torch.Tensor]) -> None:
        """DROP"""
        for each in values:
            self.values.pop(each, None)

    def forget(self, _: Sequence[torch.Tensor]) -> None:
        """FORGET"""
        self._sum_up()
        self.templates.clear()

    def _sum_up(self) -> None:
        for compiled in self.templates.values():
            if compiled.runs:
                self.counts[compiled.name] += compiled.runs
                compiled.runs = 0
        for plan in self.plans.values():
            self.counts += plan.count()

    def report(self, request: int, _: Sequence[torch.Tensor]) -> None:
        """REPORT"""
        self._sum_up()
        values = {id(v.tensor): v.tensor for v in self.values.values() if v.tensor is not None}
        memory = {storage_key(t.untyped_storage()): t.untyped_storage().nbytes() for t in values.values()}
        results = [dict(self.counts), len(self.values), sum(memory.values())]
        self.answer(Reply(request, results))

    def wait(self, request: int, _: Sequence[torch.Tensor]) -> None:
        """WAIT"""
        self._waits.append(request)
        if not self.graph.unfinished:
            self._answer_waits()

    def _answer_waits(self) -> None:
        fault = self.faults.first()
        for request in self._waits:
            self.answer(Reply(request, [], fault))
        self._waits.clear()


def _seed(generator: torch.Generator, seed: int) -> None:
    generator.manual_seed(seed)
