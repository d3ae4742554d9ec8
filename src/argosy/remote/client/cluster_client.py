"""A client of a cluster: `argosy.connect()`. It knows every task's devices, and asks the tasks.

The tensors of a program keep it alive through their handles. `close` ends its connections; its tensors cannot
be used after that.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch

from argosy.cluster.settings import DEFAULT_WAIT, NOTICE_EVERY
from argosy.cluster.spec import Address, ClusterSpec, Task
from argosy.errors import ConfigError, RemoteError, TaskLost, WaitTimeout
from argosy.events import say, say_waiting
from argosy.protocol.remote_work import Attach, Attached, CutOff, Detach, Fault, Packing, Reply, TaskGone
from argosy.remote.client import call_sites
from argosy.remote.client.connections import Connections, PendingReply
from argosy.remote.client.device_name import DeviceName
from argosy.remote.client.dispatch import OperationCall
from argosy.remote.client.gradient_tracking import WarmupObserver
from argosy.remote.client.handle import RemoteDevice
from argosy.remote.client.outbox import Outbox
from argosy.remote.client.placement_log import PlacementLog
from argosy.remote.client.recording import Recording
from argosy.remote.client.seeds import Seeds
from argosy.remote.client.shape_inference import InferredOperation, InferredOutput, results_of
from argosy.remote.client.transfer import Transfer
from argosy.remote.operations import instructions as codes
from argosy.remote.operations.instructions import Template, write_argument
from argosy.remote.transport.tensor_codec import frame_count, unpack
from argosy.wire.message import Message

# The signatures that are kept; beyond this number, all are forgotten.
_MOST_INFERRED = 20_000
# The numbers that are set aside for the results of an operation that is probed.
_MOST_RESULTS = 1024


class Client:
    """A connection to every task of a cluster. Use it in a `with` statement, or `close()` it."""

    def __init__(
        self,
        target: Address,
        *,
        log_device_placement: bool = False,
        allow_soft_placement: bool = False,
        wait: float = DEFAULT_WAIT,
    ) -> None:
        # Held by every thread that takes a number or adds an instruction: instructions stay whole and in
        # order.
        self.lock = threading.Lock()
        self.number = 0
        self.outboxes: dict[str, Outbox] = {}
        self._plan = 0
        self.inferred: dict[Any, InferredOperation] = {}
        self.transfer = Transfer(self)
        self._seeds = Seeds(self)
        self._template = 0
        self._request = 0
        self._answers: dict[int, PendingReply] = {}
        self._arrivals: dict[str, Attached] = {}
        self._changed = threading.Condition()
        self._log = PlacementLog() if log_device_placement else None
        self._soft = allow_soft_placement
        self._softened: set[str] = set()
        self.closed = False
        self.recording: Recording | None = None
        self.observer: Recording | WarmupObserver | None = None  # is told of every operation
        self.widths: dict[int, tuple[int, int, int]] = {}
        self._devices: dict[tuple[Task, str], RemoteDevice] = {}
        self._identity = uuid.uuid4().hex
        self.connections = Connections(self._identity)
        self.connections.on_message = self._on_message
        self.connections.on_loss = self._on_loss
        self.connections.on_tick = self._on_tick
        try:
            self.home, self.cluster = self._meet(target, wait)
        except BaseException:
            self.connections.close()
            raise
        if log_device_placement:
            say("device mapping:")
            for device in self._devices.values():
                say(f"  {device} -> {self.cluster.address(Task.parse(device.outbox.name))}")

    # --- meeting the cluster ------------------------------------------------------------------------------
    def _meet(self, target: Address, wait: float) -> tuple[Task, ClusterSpec]:
        """Ask the task at an address for the cluster, and attach to all tasks."""
        deadline = time.monotonic() + wait
        first = str(target)
        self.connections.open(first, target)
        self.connections.send(first, Attach(self._identity))
        self._await({first: f"a task at {target}"}, wait, deadline)
        answer = self._arrivals[first]
        home, cluster = Task.parse(answer.task), ClusterSpec(answer.cluster)
        self.connections.rename(first, answer.task)
        self._arrivals[answer.task] = answer
        others = {str(task): cluster.describe(task) for task in cluster.tasks() if task != home}
        for name in others:
            self.connections.open(name, cluster.address(Task.parse(name)))
            self.connections.send(name, Attach(self._identity))
        self._await(others, wait, deadline)
        for task in cluster.tasks():
            if (found := self._arrivals[str(task)]).task != str(task):
                raise ConfigError(
                    f"address of {task}", f"{task}", f"{found.task}", "do all tasks have the same cluster?"
                )
            self.connections.use_local_connection(str(task), cluster.address(task))
            outbox = self.outboxes[str(task)] = Outbox(str(task), self.connections)
            for kind in self._arrivals[str(task)].devices:
                self._devices[task, kind] = RemoteDevice(self, outbox, kind)
        return home, cluster

    def _await(self, names: dict[str, str], wait: float, deadline: float) -> None:
        began = time.monotonic()
        notice = began + NOTICE_EVERY
        with self._changed:
            while missing := [text for name, text in names.items() if name not in self._arrivals]:
                now = time.monotonic()
                if now >= deadline:
                    raise WaitTimeout(
                        f"only {len(names) - len(missing)} of {len(names)} tasks arrived", missing, wait
                    )
                if now >= notice:
                    say_waiting(", ".join(missing), now - began)
                    notice = now + NOTICE_EVERY
                self._changed.wait(min(deadline, notice) - now)

    # --- in the thread of the connections -----------------------------------------------------------------
    def _on_message(self, task: str, message: Message[Any]) -> None:
        header = message.header
        if isinstance(header, Reply):
            if (answer := self._answers.pop(header.request, None)) is not None:
                answer.put(message)
        elif isinstance(header, Attached):
            with self._changed:
                self._arrivals[task] = header
                self._changed.notify_all()
        elif isinstance(header, CutOff):
            self._lose(task, f"it has ended this client's session: {header.reason}")

    def _on_loss(self, task: str) -> None:
        if task in self.outboxes:  # else it was not up yet, and may come back
            self._lose(task, "its connection has ended")

    def _lose(self, task: str, why: str) -> None:
        outbox = self.outboxes[task]
        outbox.lost = f"{why}; its values are lost, the other tasks can still be used"
        for name, other in self.outboxes.items():
            if not other.lost:
                self.connections.send(name, TaskGone(task))
        for request, answer in list(self._answers.items()):
            if answer.task == task and self._answers.pop(request, None) is not None:
                answer.put(None)

    def _on_tick(self) -> bool:
        """Send what has waited for a moment; returns whether there was any."""
        outboxes = [outbox for outbox in self.outboxes.values() if not outbox.idle]
        if outboxes:
            with self.lock:
                for outbox in outboxes:
                    outbox.flush()
        return bool(outboxes)

    # --- numbers, batches and recordings ------------------------------------------------------------------
    def flush(self) -> None:
        """Send all batches."""
        with self.lock:
            for outbox in self.outboxes.values():
                outbox.flush()

    def take_numbers(self, count: int) -> int:
        """Numbers for new values; returns the first."""
        with self.lock:
            first = self.number
            self.number += count
        return first

    def take_plan(self) -> int:
        """A number for a captured step."""
        with self.lock:
            self._plan += 1
            return self._plan

    def start_tapes(self) -> dict[Outbox, list[list[Any]]]:
        """Keep what is sent from now on, for a recording."""
        self.flush()
        with self.lock:
            for outbox in self.outboxes.values():
                outbox.tape = []
                outbox.gone = set()
        return {outbox: outbox.tape for outbox in self.outboxes.values() if outbox.tape is not None}

    def stop_tapes(self) -> None:
        """Keep no more of what is sent."""
        self.flush()
        with self.lock:
            for outbox in self.outboxes.values():
                outbox.tape = None

    def alive(self, outbox: Outbox, numbers: set[int]) -> set[int]:
        """Those of these values of a recording that the program still holds."""
        with self.lock:  # another thread may send what is dropped at any moment
            return numbers - set(outbox.dropped) - (outbox.gone or set())

    def end_recording(self) -> None:
        """Forget what was dropped: `alive` is not asked any more."""
        with self.lock:
            for outbox in self.outboxes.values():
                outbox.gone = None

    # --- asking -------------------------------------------------------------------------------------------
    def _ask(self, outbox: Outbox, *record: Any) -> PendingReply:
        """Add an instruction that will be answered; `None` in it stands for the number of the request."""
        self._check_open()
        outbox.check()
        answer = PendingReply(outbox.name)
        with self.lock:
            self._request += 1
            self._answers[self._request] = answer
            outbox.batch.extend(self._request if each is None else each for each in record)
        return answer

    def _wait(self, answer: PendingReply) -> Message[Reply]:
        answer.wait()
        if answer.message is None:
            lost = self.outboxes[answer.task].lost if answer.task in self.outboxes else ""
            raise TaskLost(answer.task, lost or "its connection ended while the client waited for a value")
        if (fault := answer.message.header.fault) is not None:
            self._raise(fault)
        return answer.message

    def _raise(self, fault: Fault) -> NoReturn:
        if fault.number >= 0 and fault.task in self.outboxes:
            with self.lock:  # the task need not report it again at the end
                self.outboxes[fault.task].batch.extend((codes.SEEN, fault.number))
        if fault.lost:
            raise TaskLost(fault.task, "the value that the client waits for depends on it")
        raise RemoteError(
            fault.task,
            fault.operation,
            f"{fault.kind}: {fault.message}",
            call_sites.describe(fault.site),
            fault.trace,
        )

    def fetch(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        """The values of remote tensors, as ordinary tensors; waits for them."""
        by_post: dict[Outbox, list[int]] = {}
        for position, each in enumerate(tensors):
            by_post.setdefault(each.handle.device.outbox, []).append(position)
        asked = [
            (self._ask(outbox, codes.FETCH, None, [tensors[p].handle.number for p in positions]), positions)
            for outbox, positions in by_post.items()
        ]
        self.flush()
        values: list[Any] = [None] * len(tensors)
        for answer, positions in asked:
            message = self._wait(answer)
            first = 0
            for position, wire in zip(positions, message.header.results, strict=True):
                packing = Packing(wire[0], tuple(wire[1]), tuple(wire[2]))
                last = first + frame_count(packing)
                values[position] = unpack(packing, message.tensors[first:last])
                first = last
        return values

    def request_progress(self, outboxes: Iterable[Outbox]) -> list[PendingReply]:
        """Ask tasks to answer when they have read what was sent until now."""
        return [self._ask(outbox, codes.FETCH, None, []) for outbox in outboxes]

    def wait_for_progress(self, asked: Sequence[PendingReply]) -> None:
        """Wait for these answers."""
        for answer in asked:
            self._wait(answer)

    def probe(
        self, call: OperationCall, device: RemoteDevice, inferred: InferredOperation
    ) -> tuple[list[InferredOutput], int]:
        """Let the task run an operation and describe its results; returns these and the first number."""
        template = inferred.templates.get(device)
        if template is None:
            template = self.define(call, device, inferred)
        first = self.take_numbers(_MOST_RESULTS)
        numbers = [each.handle.number for each in call.tensors]
        site = call_sites.here()
        answer = self._ask(device.outbox, codes.PROBE, None, template, first, site, numbers, call.floats)
        self.flush()
        message = self._wait(answer)
        if len(message.header.results) > _MOST_RESULTS:
            why = f"more than {_MOST_RESULTS} results"
            raise RemoteError(device.outbox.name, inferred.name, why, call_sites.describe(site))
        return [InferredOutput.read(wire) for wire in message.header.results], first

    def synchronize(self) -> None:
        """Wait until every task has done all its work; raises the first error that was not reported yet."""
        asked = [self._ask(outbox, codes.WAIT, None) for outbox in self.outboxes.values() if not outbox.lost]
        self.flush()
        self.wait_for_progress(asked)

    def ran(self, task: str) -> dict[str, int]:
        """How often a task has run each operation for this client, as the task counts."""
        return dict(self._report(task)[0])

    def held(self, task: str) -> tuple[int, int]:
        """How many values a task holds for this client, and how many bytes of memory they take."""
        _, values, size = self._report(task)
        return values, size

    def _report(self, task: str) -> list[Any]:
        answer = self._ask(self.device(DeviceName.parse(task)).outbox, codes.REPORT, None)
        self.flush()
        return self._wait(answer).header.results

    # --- signatures and templates -------------------------------------------------------------------------
    def keep_inferred(self, key: Any, inferred: InferredOperation) -> None:
        """Remember what was inferred for a signature."""
        if len(self.inferred) >= _MOST_INFERRED:
            with self.lock:
                self.inferred = {}
                for outbox in self.outboxes.values():
                    outbox.batch.append(codes.FORGET)
        self.inferred[key] = inferred

    def define(self, call: OperationCall, device: RemoteDevice, inferred: InferredOperation) -> int:
        """Define a template on a task; returns its number."""
        self._check_open()
        device.outbox.check()
        vary = inferred.floats > 0
        picks, results = results_of(inferred)
        with self.lock:
            number = self._template
            self._template += 1
            template = Template(
                number,
                inferred.name,
                [write_argument(each, vary) for each in call.args],
                {n: write_argument(each, vary) for n, each in call.kwargs.items() if n != "pin_memory"},
                inferred.inputs,
                inferred.floats,
                device.kind,
                picks,
                None if inferred.probe else results,
                inferred.random,
                inferred.grad,
            )
            device.outbox.batch.extend((codes.DEFINE, template))
            inferred.templates[device] = number
            self.widths[number] = (inferred.inputs, inferred.floats, inferred.made)
        if self._log is not None:
            self._log.note(inferred.name, device.name)
        return number

    def keep_seeds(self, device: RemoteDevice) -> None:
        """Call this before a random operation: the task follows `torch.manual_seed`."""
        self._seeds.follow(device)

    # --- devices ------------------------------------------------------------------------------------------
    def devices(self) -> list[str]:
        """The names of all devices, such as `/job:worker/task:0/cpu:0`."""
        return [device.name for device in self._devices.values()]

    def device(self, name: DeviceName) -> RemoteDevice:
        """The device of a name, which may be incomplete."""
        self._check_open()
        task, kind = name.complete(self.home)
        self.cluster.require(task)
        if (found := self._devices.get((task, kind))) is not None:
            return found
        have = ", ".join(k for t, k in self._devices if t == task)
        wanted = f"{task}/{kind}"
        if not self._soft:
            raise ConfigError(
                "device", f"one that {task} has: {have}", wanted, "or use connect(allow_soft_placement=True)"
            )
        fallback = self._devices.get((task, "cpu:0"))
        assert fallback is not None
        if wanted not in self._softened:
            self._softened.add(wanted)
            say(f"{wanted} does not exist: operations placed there run on {fallback}")
        return fallback

    # --- the end ------------------------------------------------------------------------------------------
    def _check_open(self) -> None:
        if self.closed:
            raise ConfigError("client", "an open client", "a closed one", "connect again")

    def close(self) -> None:
        """End the connections; the tasks forget this client's values."""
        if self.closed:
            return
        self.closed = True
        for name, outbox in self.outboxes.items():
            if not outbox.lost:
                self.connections.send(name, Detach())
        self.connections.close()
        for request in list(self._answers):
            if (answer := self._answers.pop(request, None)) is not None:
                answer.put(None)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        try:
            if kind is None:
                self.synchronize()
        finally:
            self.close()
