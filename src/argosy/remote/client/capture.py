"""`argosy.capture`: a step that repeats is recorded once, and replayed with one message for each task."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from argosy.events import say
from argosy.remote.client.active_scope import current_client
from argosy.remote.client.cluster_client import Client
from argosy.remote.client.connections import PendingReply
from argosy.remote.client.dispatch import RemoteTensor, wrap
from argosy.remote.client.gradient_tracking import GradientEffects, UsedGradient, WarmupObserver
from argosy.remote.client.handle import Handle, RemoteDevice, RemoteStorage, TensorMeta
from argosy.remote.client.outbox import Outbox
from argosy.remote.client.recording import (
    FedTensor,
    LocalCall,
    LocalRecorder,
    NotReplayable,
    Recording,
    replaced,
    tensors_in,
)
from argosy.remote.operations.instructions import ALIAS, RECORD, REPLAY, UNRECORD
from argosy.remote.transport.tensor_codec import pack
from argosy.torch_private import tree_flatten, tree_unflatten

P = ParamSpec("P")
R = TypeVar("R")

# The signatures of arguments that are recorded; a call with yet another runs without a recording.
_MANY = 16
# The recordings that are kept for one signature: gradients may exist in some calls and not in others.
_VARIANTS = 4
# Replays between two reports of the tasks. The client is at most two such intervals ahead.
_REPORT_EVERY = 32


def capture(function: Callable[P, R], client: Client | None = None) -> Captured[P, R]:
    """A step that is called many times with tensors of the same shapes: recorded once, then replayed.

    The first call runs as it is, the second is recorded, and from the third on one message is sent to each
    task, with the values of the ordinary tensors among the arguments. Python does not run again: numbers that
    it computed are those of the recording, unless they are arguments. If a step does what a replay cannot
    repeat, such as to wait for a value, or to replace a tensor instead of writing to it, a message says so
    once, and the function runs as it is. For other shapes or numbers among the arguments another recording is
    made. Results have no autograd history.
    """
    return Captured(function, client)


class Captured(Generic[P, R]):
    """See `capture`."""

    def __init__(self, function: Callable[P, R], client: Client | None = None) -> None:
        self._function = function
        self._client = client
        self._plans: dict[Any, deque[_Plan]] = {}
        # Tensors that may have gradients, arguments aside, which calls that were not replayed have used.
        self._known: dict[int, weakref.ref[Any]] = {}
        self._unused = 0  # recordings since the last replay
        self._said = False
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        leaves, structure = tree_flatten((args, kwargs))
        key = (structure, *map(_signature, leaves))
        plans = self._plans.get(key)
        if plans is None:
            if len(self._plans) < _MANY:
                self._plans[key] = deque(maxlen=_VARIANTS)
            return self._warm_up(leaves, args, kwargs)  # what is done in the first call only is done here
        for plan in plans:
            if plan.is_refused:
                return self._function(*args, **kwargs)
            if plan.holds(leaves):
                self._unused = 0
                return plan.replay(leaves)  # type: ignore[no-any-return]
        self._unused += 1
        plan, returned = self._record(leaves, args, kwargs)
        plans.append(plan)
        return returned

    def _warm_up(self, leaves: Sequence[Any], args: Any, kwargs: Any) -> R:
        """Run the function without a recording; note which tensors may have gradients."""
        client = self._client or current_client()
        if client.observer is not None:
            return self._function(*args, **kwargs)
        observer = client.observer = WarmupObserver()
        try:
            return self._function(*args, **kwargs)
        finally:
            client.observer = None
            self._note(observer.leaves.values(), leaves)

    def _note(self, used: Iterable[Any], arguments: Sequence[Any]) -> None:
        """Note what a call has used. Recordings that do not know such a tensor hold only while it has no
        gradient.
        """
        self._known = {number: each for number, each in self._known.items() if each() is not None}
        given = {id(each) for each in arguments}
        for each in used:
            if id(each) not in given and id(each) not in self._known:
                self._known[id(each)] = weakref.ref(each)
                for plans in self._plans.values():
                    for plan in plans:
                        plan.note_unknown(each)

    def _record(self, leaves: Sequence[Any], args: Any, kwargs: Any) -> tuple[_Plan, R]:
        client = self._client or current_client()
        tapes = client.start_tapes()
        known = [each for reference in self._known.values() if (each := reference()) is not None]
        recording = Recording(client, [*known, *(each for each in leaves if isinstance(each, RemoteTensor))])
        del known
        client.recording = client.observer = recording
        try:
            try:
                with LocalRecorder(recording):
                    returned = self._function(*args, **kwargs)
            finally:
                client.recording = client.observer = None
                recording.watch.stop()
                gc.collect()  # a tensor that only a reference cycle holds must not count as kept
                client.stop_tapes()
            plan = _Plan(client, recording)
            self._build(plan, tapes, leaves, returned)
            return plan, returned
        finally:
            client.end_recording()
            self._note(recording.watch.leaves(), leaves)

    def _build(self, plan: _Plan, tapes: Mapping[Outbox, Any], leaves: Sequence[Any], returned: R) -> None:
        try:
            if self._unused > _MANY:
                raise NotReplayable("it reads gradients or numbers that differ from call to call")
            plan.build(tapes, leaves, returned)
        except NotReplayable as error:
            plan.is_refused = True
            if not self._said:
                self._said = True
                name = getattr(self._function, "__qualname__", "the function")
                say(f"capture: {name} runs without being replayed: {error}")


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, RemoteTensor):
        return (leaf.handle.meta, leaf.handle.device)
    if isinstance(leaf, torch.Tensor):
        return (tuple(leaf.shape), leaf.dtype)
    return (type(leaf), leaf)


class _Plan:
    """A recording that the tasks know by a number, and its replays."""

    def __init__(self, client: Client, recording: Recording) -> None:
        self._client = client
        self._recording = recording
        self.is_refused = False
        self._number = 0
        self._turn = 0
        self._outboxes: dict[Outbox, None] = {}  # of the tasks that take part, in order
        self._arguments: list[tuple[int, int, Outbox]] = []
        self._outputs: list[Any] = []
        self._structure: Any = None
        self._leaves: list[Any] = []
        self._progress: list[PendingReply] = []
        self._gradients = GradientEffects([], [])

    def holds(self, leaves: Sequence[Any]) -> bool:
        """Whether the numbers that Python reads from local tensors, and the gradients, are as recorded."""
        guards = self._recording.guards
        return self._gradients.match(leaves) and all(t.item() == value for t, value in guards)

    def note_unknown(self, leaf: Any) -> None:
        """Another call has used this tensor; it is not known whether this one clears its gradient."""
        self._gradients.used.append(UsedGradient(leaf, -1, None))

    def build(self, tapes: Mapping[Outbox, list[list[Any]]], leaves: Sequence[Any], returned: Any) -> None:
        """Turn what was sent into the shares of the tasks, and send them."""
        client, recording = self._client, self._recording
        if recording.trouble:
            raise NotReplayable(recording.trouble)
        recording.forget_copies()
        recording.keep_externals()
        self._leaves = list(leaves)  # kept alive, because they are found by `id`
        renamed: dict[int, int] = {}
        for position, leaf in enumerate(leaves):
            if isinstance(leaf, RemoteTensor) and leaf.handle.number in recording.externals:
                alias = client.take_numbers(1)
                renamed[leaf.handle.number] = alias
                self._arguments.append((position, alias, leaf.handle.device.outbox))
        parts = {outbox: recording.part(tape, renamed) for outbox, tape in tapes.items()}
        made = {number for part in parts.values() for number in part.made}
        outputs, self._structure = tree_flatten(returned)
        self._gradients = recording.watch.found(recording, leaves, outputs)
        self._outputs = [_Output.of(each, made) for each in outputs]
        recording.prune(outputs)
        for output, tensor in zip(self._outputs, outputs, strict=True):
            if output.number is not None:
                _rename(client, tensor)
        self._number = client.take_plan()
        for outbox, part in parts.items():
            if part.records or part.feeds:
                self._outboxes[outbox] = None
                kept = sorted(part.made & client.alive(outbox, part.made))
                recording.will_change(kept)
                with client.lock:
                    outbox.batch.extend(
                        (RECORD, self._number, part.records, part.feeds, kept, sorted(part.made))
                    )
        for output in self._outputs:
            if output.number is not None and output.device is not None:
                self._outboxes[output.device.outbox] = None

    def replay(self, leaves: Sequence[Any]) -> Any:
        """Run the step on the tasks, with these arguments."""
        client = self._client
        self._turn += 1
        for device in self._recording.random:
            client.keep_seeds(device)
        env: dict[int, Any] = {}
        for before, now in zip(self._leaves, leaves, strict=True):
            env[id(before)] = now
        messages = {outbox: _Message() for outbox in self._outboxes}
        for event in self._recording.sequence:
            if isinstance(event, FedTensor):
                tensor = env.get(id(event.tensor), event.tensor)
                messages[client.outboxes[event.task]].add(event.number, tensor)
            else:
                _repeat(event, env)
        for position, alias, outbox in self._arguments:
            messages[outbox].binds.append((alias, leaves[position].handle.number))
        results = [output.renew(client, messages, env) for output in self._outputs]
        for memory in self._recording.mutated:
            memory.version += 1
        self._limit_lead()
        with client.lock:
            for outbox, message in messages.items():
                outbox.check()
                first = outbox.attach_frames(message.frames)
                feeds = [[n, packing, first + at, count] for n, packing, at, count in message.feeds]
                outbox.batch.extend((REPLAY, self._number, self._turn, feeds, message.binds, message.outputs))
                outbox.flush()
        self._gradients.apply(leaves, results)
        return tree_unflatten(results, self._structure)

    def _limit_lead(self) -> None:
        """Wait if the tasks are far behind, because what they have not read yet takes memory."""
        if self._turn % _REPORT_EVERY:
            return
        if self._progress:
            self._client.wait_for_progress(self._progress)
        self._progress = self._client.request_progress(self._outboxes)

    def __del__(self) -> None:
        if self._outboxes and not self._client.closed:
            for outbox in self._outboxes:
                outbox.retired.append((UNRECORD, self._number))


@dataclass
class _Message:
    """One replay for one task, while it is made."""

    feeds: list[tuple[int, Any, int, int]] = field(default_factory=list)
    frames: list[torch.Tensor] = field(default_factory=list)
    binds: list[tuple[int, int]] = field(default_factory=list)
    outputs: list[tuple[int, int]] = field(default_factory=list)

    def add(self, number: int, tensor: torch.Tensor) -> None:
        packing, frames = pack(tensor)
        self.feeds.append((number, packing, len(self.frames), len(frames)))
        self.frames += frames


@dataclass(frozen=True)
class _Output:
    """One leaf of the function's result."""

    value: Any
    number: int | None = None
    meta: TensorMeta | None = None
    device: RemoteDevice | None = None

    @classmethod
    def of(cls, value: Any, made: set[int]) -> _Output:
        """A value of the plan gets a new number at each replay; anything else stays as it is."""
        if isinstance(value, RemoteTensor) and value.handle.number in made:
            handle = value.handle
            return cls(None, handle.number, handle.meta, handle.device)
        return cls(value)

    def renew(self, client: Client, messages: dict[Outbox, _Message], env: dict[int, Any]) -> Any:
        if self.number is None or self.device is None or self.meta is None:
            return env.get(id(self.value), self.value) if isinstance(self.value, torch.Tensor) else self.value
        number = client.take_numbers(1)
        messages[self.device.outbox].outputs.append((self.number, number))
        return wrap(Handle(number, self.meta, self.device, RemoteStorage()))


def _rename(client: Client, tensor: RemoteTensor) -> None:
    """Give a result of the recorded call another number: replays make the value of the old one anew."""
    old, number = tensor.handle, client.take_numbers(1)
    with client.lock:
        old.device.outbox.batch.extend((ALIAS, old.number, number))
    tensor.handle = Handle(number, old.meta, old.device, old.storage, old.offset)


def _repeat(call: LocalCall, env: dict[int, Any]) -> None:
    """Repeat a local operation with the tensors of this replay."""
    with torch.no_grad():
        returned = call.func(*replaced(call.args, env), **replaced(call.kwargs, env))
    for old, new in zip(tensors_in(call.returned), tensors_in(returned), strict=True):
        env[id(old)] = new
