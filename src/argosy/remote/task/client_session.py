"""One client's work on one task: its values, templates and random numbers, and the thread that runs it.

The server hands over the client's messages; all else happens in the session's thread and in the helpers of
its scheduler. An error stays with the values that depend on it until the client asks for one of them.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import torch

from argosy.cluster.spec import Address
from argosy.errors import WireError
from argosy.events import say
from argosy.protocol.remote_work import Fault, Packing, Parcel, Reply
from argosy.remote.operations import instructions as codes
from argosy.remote.operations.instructions import Template
from argosy.remote.operations.kernel import HEAVY, Kernel
from argosy.remote.task.faults import Faults
from argosy.remote.task.local_connections import LocalConnections
from argosy.remote.task.program import CapturedStep
from argosy.remote.task.scheduler import Scheduler, Storage, Value, WorkItem, prepare_thread
from argosy.remote.task.value_exchange import ValueExchange
from argosy.remote.transport.tensor_codec import dtype_name, pack, unpack
from argosy.torch_private import storage_key

# With this many items waiting, no more messages are read, so that work which is sent ahead stays compact.
_AHEAD = 4096

Batch = tuple[list[Any], Sequence[torch.Tensor]]


class SessionOwner(Protocol):
    """What a session needs of the server that owns it."""

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
        """Send to a task of another host."""


class ClientSession:
    """The state of one client. Any thread may call `close`."""

    def __init__(self, client: str, owner: SessionOwner, helpers: int, spin: float = 0.0) -> None:
        self.client = client
        self.owner = owner
        self.scheduler = Scheduler(helpers)
        self.scheduler.on_ready = self.wake
        self.values: dict[int, Value] = {}
        self.templates: dict[int, Kernel] = {}
        self.generator = torch.Generator()
        self.counts: Counter[str] = Counter()
        self.randomness = Value(Storage())
        self._inbox: deque[Batch] = deque()
        self.exchange = ValueExchange(self)
        self.local = LocalConnections(client, self.exchange.receive, self.work, spin)
        self._waits: list[int] = []
        self.faults = Faults(owner.task)
        self._closed = False
        self.plans: dict[int, CapturedStep] = {}
        handlers: dict[int, Callable[..., None]] = {
            codes.DEFINE: self.define,
            codes.PUT: self.put,
            codes.SEND: self.send,
            codes.EXPECT: self.expect,
            codes.FETCH: self.fetch,
            codes.PROBE: self.probe,
            codes.SEED: self.seed,
            codes.DROP: self.drop,
            codes.FORGET: self.forget,
            codes.REPORT: self.report,
            codes.WAIT: self.wait,
            codes.RECORD: self.record,
            codes.REPLAY: self.replay,
            codes.UNRECORD: self.unrecord,
            codes.ALIAS: self.alias,
            codes.SEEN: self.seen,
        }
        self._handlers = {code: (codes.WIDTHS[code], handler) for code, handler in handlers.items()}
        self._thread = threading.Thread(target=self._loop, name=f"argosy-session-{client[:8]}", daemon=True)
        self._thread.start()

    def answer(self, reply: Reply, frames: Sequence[torch.Tensor] = ()) -> None:
        """Send a reply to the client."""
        if (sender := self.local.to_client) is not None:
            sender.send(reply, frames)
        else:
            self.owner.answer(self.client, reply, frames)

    # --- from the server's loop ---------------------------------------------------------------------------
    def work(self, records: list[Any], frames: Sequence[torch.Tensor]) -> None:
        """A message of the client."""
        self._inbox.append((records, frames))
        self.wake()

    def close(self) -> None:
        """Stop after the item that is running, and free everything."""
        self._closed = True
        self.wake()

    @property
    def alive(self) -> bool:
        """Whether its thread still runs."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait until the session's threads have ended."""
        self._thread.join()

    # --- the session's own thread -------------------------------------------------------------------------
    def wake(self) -> None:
        """Wake the session's thread, because there is work."""
        self.local.wake()

    def _loop(self) -> None:
        prepare_thread()
        self.local.read_in_this_thread()
        try:
            while not self._closed:
                self._turn()
        except Exception as error:
            # Only a client that breaks the protocol causes this; the task goes on without it.
            say(f"{self.owner.task}: client {self.client} is disconnected: {traceback.format_exc()}")
            self.owner.cut_off(self.client, f"{type(error).__name__}: {error}")
        finally:
            self._closed = True
            self.scheduler.close()
            self.values.clear()
            self.templates.clear()
            self.plans.clear()
            self.local.close()

    def _turn(self) -> None:
        """Do the next thing: run what is ready, send, answer, read a message; or wait for one."""
        if (item := self.scheduler.take(only_small=bool(self._inbox))) is not None:
            if self.exchange.outgoing and not item.sends:
                self.exchange.flush()
            item.run()
            if item.sends:
                self.exchange.leaving.append(item)
            else:
                self.scheduler.finish(item)
        elif self.exchange.outgoing:
            self.exchange.flush()
        elif self._waits and not self.scheduler.unfinished:
            self._answer_waits()
        elif self._inbox and self.scheduler.unfinished < _AHEAD:
            self.read(*self._inbox.popleft())
        else:
            self.local.wait(self._has_work)

    def _has_work(self) -> bool:
        """Whether there is work, apart from messages on local connections."""
        if self._closed or not self.scheduler.idle:
            return True
        return (bool(self._inbox) and self.scheduler.unfinished < _AHEAD) or (
            bool(self._waits) and not self.scheduler.unfinished
        )

    def read(self, records: list[Any], frames: Sequence[torch.Tensor]) -> None:
        """Carry out instructions in order: run what is ready, and schedule the rest."""
        position, end = 0, len(records)
        templates, values = self.templates, self.values
        while position < end:
            number = records[position]
            if number >= 0:
                kernel = templates[number]
                first = position + 3
                last = first + kernel.inputs
                self.run(
                    kernel,
                    [values[each] for each in records[first:last]],
                    records[last : last + kernel.floats],
                    records[position + 1],
                    records[position + 2],
                )
                position += kernel.width
            else:
                width, handler = self._handlers[number]
                handler(*records[position + 1 : position + width], frames)
                position += width

    def run(self, kernel: Kernel, inputs: list[Value], floats: list[float], site: int, first: int) -> None:
        """Run an operation, at once if it waits for nothing."""
        outputs = []
        joint = Storage() if kernel.joint else None
        for number in range(kernel.outputs):
            view = kernel.views[number]
            value = Value((joint or Storage()) if view < 0 else inputs[view].storage)
            self.values[first + number] = value
            outputs.append(value)
        if self.exchange.outgoing and not kernel.light:
            self.exchange.flush()
        scheduler = self.scheduler
        if not scheduler.unfinished and not kernel.heavy:
            self.execute(kernel, inputs, outputs, floats, site)
            return
        item = WorkItem(lambda: self.execute(kernel, inputs, outputs, floats, site), kernel.heavy)
        reads, writes = self._reads_and_writes(kernel, inputs)
        self.submit(item, reads, writes, outputs)

    def _reads_and_writes(self, kernel: Kernel, inputs: list[Value]) -> tuple[list[Value], list[Value]]:
        writes = [inputs[each] for each in kernel.mutates]
        if kernel.random:
            return [*inputs, self.randomness], [*writes, self.randomness]
        return inputs, writes

    def submit(
        self,
        item: WorkItem,
        reads: Sequence[Value],
        writes: Sequence[Value],
        outputs: Sequence[Value] = (),
        after: Sequence[WorkItem] = (),
    ) -> None:
        """Run an item now, or as soon as what it waits for is done."""
        if writes and self.exchange.outgoing:
            self.exchange.flush()  # its items ran at once, so the scheduler does not know what they read
        if self.scheduler.add(item, reads, writes, after):
            item.run()
            item.done = True
            item.release()
            return
        for value in outputs:
            value.maker = item
            if value.storage.writer is None and value.storage not in [each.storage for each in reads]:
                value.storage.writer = item

    def execute(
        self,
        kernel: Kernel,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        floats: Sequence[float],
        site: int,
    ) -> None:
        """Run an operation; its outputs, and what it writes to, hold the result or the fault."""
        tensors = []
        for value in inputs:
            if value.fault is not None or value.storage.fault is not None:
                self._fail(value.fault or value.storage.fault, inputs, kernel.mutates, outputs)
                return
            tensors.append(value.tensor)
        began = time.perf_counter()
        try:
            for position in kernel.mutates:
                inputs[position].storage.before_writing()
            results = kernel.call(tensors, floats, self.generator)
        except Exception as error:
            fault = self.faults.add(kernel.name, site, error)
            self._fail(fault, inputs, kernel.mutates, outputs)
            return
        kernel.heavy = time.perf_counter() - began > HEAVY
        for value, tensor in zip(outputs, results, strict=True):
            value.tensor = tensor

    @staticmethod
    def _fail(
        fault: Fault | None, inputs: Sequence[Value], mutates: Sequence[int], outputs: Sequence[Value]
    ) -> None:
        for value in outputs:
            value.fault = fault
        for position in mutates:
            inputs[position].storage.fault = fault

    # --- instructions other than operations ---------------------------------------------------------------
    def define(self, wire: Any, _: Sequence[torch.Tensor]) -> None:
        """DEFINE"""
        try:
            template = msgspec.convert(wire, Template)
        except msgspec.ValidationError as error:
            raise WireError(f"template: {error}") from None
        self.templates[template.number] = Kernel(template, self.owner.device(template.device))

    def put(self, value: int, packing: Any, frame: int, count: int, frames: Sequence[torch.Tensor]) -> None:
        """PUT"""
        made = self.values[value] = Value(Storage())
        made.tensor = unpack(msgspec.convert(packing, Packing), frames[frame : frame + count])

    def send(self, value: int, task: str, there: int, site: int, _: Sequence[torch.Tensor]) -> None:
        """SEND"""
        self.exchange.send_value(self.values[value], task, there, site)

    def expect(self, value: int, task: str, _: Sequence[torch.Tensor]) -> None:
        """EXPECT"""
        self.values[value] = self.exchange.expect(value, task, 0)

    def fetch(self, request: int, wanted: list[int], _: Sequence[torch.Tensor]) -> None:
        """FETCH"""
        values = [self.values[each] for each in wanted]
        item = WorkItem(lambda: self._fetch(request, values))
        item.urgent = True
        self.submit(item, values, [])

    def _fetch(self, request: int, values: Sequence[Value]) -> None:
        packings, frames = [], []
        for value in values:
            fault = value.fault or value.storage.fault
            if fault is None:
                try:
                    packing, bytes_of_it = pack(value.tensor, copy=self.local.to_client is None)
                except Exception as error:
                    fault = self.faults.add("fetch", -1, error)
            if fault is not None:
                self.answer(Reply(request, [], fault))
                return
            packings.append(packing)
            frames += bytes_of_it
        self.answer(Reply(request, packings), frames)

    def probe(
        self,
        request: int,
        number: int,
        first: int,
        site: int,
        inputs: list[int],
        floats: list[float],
        _: Sequence[torch.Tensor],
    ) -> None:
        """PROBE"""
        kernel = self.templates[number]
        values = [self.values[each] for each in inputs]
        reads, writes = self._reads_and_writes(kernel, values)
        item = WorkItem(lambda: self.answer(self._probe(request, kernel, values, floats, first, site)))
        self.submit(item, reads, writes)

    def _probe(
        self, request: int, kernel: Kernel, inputs: list[Value], floats: list[float], first: int, site: int
    ) -> Reply:
        """Run an operation whose results are unknown before it runs, and describe them to the client."""
        tensors = [value.tensor for value in inputs]
        fault = next((f for v in inputs if (f := v.fault or v.storage.fault) is not None), None)
        results: list[Any] = []
        if fault is None:
            try:
                for position in kernel.mutates:
                    inputs[position].storage.before_writing()
                joint = Storage() if kernel.joint else None
                for number, output in enumerate(kernel.call(tensors, floats, self.generator)):
                    results.append(_describe(output, tensors))
                    if isinstance(output, torch.Tensor):
                        alias = results[-1][5]
                        value = Value((joint or Storage()) if alias < 0 else inputs[alias].storage)
                        value.tensor = output
                        self.values[first + number] = value
            except Exception as error:
                fault = self.faults.add(kernel.name, site, error)
        return Reply(request, [] if fault else results, fault)

    def record(
        self, plan: int, records: list[Any], feeds: list[int], kept: list[int], made: list[int], _: Any
    ) -> None:
        """RECORD"""
        self.plans[plan] = CapturedStep(records, feeds, kept, dict(self.templates))

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
        if self.exchange.outgoing:
            self.exchange.flush()
        self.plans[number].replay(self, turn, feeds, binds, outputs, frames)

    def unrecord(self, plan: int, _: Sequence[torch.Tensor]) -> None:
        """UNRECORD"""
        if (gone := self.plans.pop(plan, None)) is not None:
            self.counts += gone.take_counts()

    def alias(self, value: int, other: int, _: Sequence[torch.Tensor]) -> None:
        """ALIAS"""
        self.values[other] = self.values[value]

    def seen(self, error: int, _: Sequence[torch.Tensor]) -> None:
        """SEEN"""
        self.faults.mark_seen(error)

    def seed(self, seed: int, _: Sequence[torch.Tensor]) -> None:
        """SEED"""
        item = WorkItem(lambda: self.generator.manual_seed(seed))
        self.submit(item, [self.randomness], [self.randomness])

    def drop(self, values: list[int], _: Sequence[torch.Tensor]) -> None:
        """DROP"""
        for each in values:
            self.values.pop(each, None)

    def forget(self, _: Sequence[torch.Tensor]) -> None:
        """FORGET"""
        self._sum_up()
        self.templates.clear()

    def _sum_up(self) -> None:
        for kernel in self.templates.values():
            if kernel.runs:
                self.counts[kernel.name] += kernel.runs
                kernel.runs = 0
        for plan in self.plans.values():
            self.counts += plan.take_counts()

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
        if not self.scheduler.unfinished:
            self._answer_waits()

    def _answer_waits(self) -> None:
        fault = self.faults.first()
        for request in self._waits:
            self.answer(Reply(request, [], fault))
        self._waits.clear()


def _describe(output: Any, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """A result as `InferredOutput.read` of the client reads it."""
    if not isinstance(output, torch.Tensor):
        if output is not None and not isinstance(output, bool | int | float):
            raise TypeError(f"a result of type {type(output).__name__} cannot be sent")
        return ["v", output]
    if output.layout is not torch.strided or output.is_quantized:
        raise TypeError(f"remote devices do not support {output.layout} tensors of {output.dtype}")
    memory = storage_key(output.untyped_storage())
    shared = [n for n, each in enumerate(inputs) if storage_key(each.untyped_storage()) == memory]
    return [
        "t",
        dtype_name(output.dtype),
        list(output.shape),
        list(output.stride()),
        output.storage_offset(),
        shared[0] if shared else -1,
        [output.is_conj(), output.is_neg()],
    ]
