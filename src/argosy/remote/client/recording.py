"""A recording of one call of a function: the instructions for each task, and what the client does itself.

`capture.py` makes it. During the recording the call runs as usual. What it sends is also kept, and operations
on local tensors are noted, to be done again at each replay.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from argosy.remote.client.gradient_tracking import GradientTracker
from argosy.remote.client.handle import Handle, RemoteDevice, RemoteStorage
from argosy.remote.operations import instructions as codes
from argosy.torch_private import LOCAL_SCALAR, TorchDispatchMode, schema_of

if TYPE_CHECKING:
    from argosy.remote.client.cluster_client import Client
    from argosy.remote.client.shape_inference import InferredOperation


class NotReplayable(Exception):
    """The call did something that a replay cannot repeat; the message says what."""


@dataclass
class LocalCall:
    """An operation on local tensors."""

    func: Any
    args: Any
    kwargs: Any
    returned: Any


@dataclass
class FedTensor:
    """A local tensor that was sent."""

    task: str
    number: int
    tensor: torch.Tensor


@dataclass
class TaskShare:
    """What one task does: its instructions, the values that it makes, and those that the client sends."""

    records: list[Any] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    feeds: list[int] = field(default_factory=list)


class Recording:
    """Collects while the call runs. `start` is the number of the first value that it makes."""

    def __init__(self, client: Client, known: Iterable[Any] = ()) -> None:
        """`known`: tensors that an earlier call has used, and may have given gradients to."""
        self.client = client
        self.watch = GradientTracker(known)
        self.start = client.number
        self.sequence: list[LocalCall | FedTensor] = []
        self.guards: list[tuple[torch.Tensor, Any]] = []
        self.externals: dict[int, Handle] = {}  # values from before the call; filled by `keep_externals`
        self._used: dict[int, weakref.ref[Handle]] = {}
        self.mutated: set[RemoteStorage] = set()
        self.random: set[RemoteDevice] = set()
        self.trouble = ""
        self._copied: list[Handle] = []
        self._storages: dict[int, RemoteStorage] = {}
        self._written_here: set[int] = set()

    # --- called by dispatch and transfer ------------------------------------------------------------------
    def note(self, inferred: InferredOperation, tensors: Sequence[Any], device: RemoteDevice) -> None:
        """An operation that was sent."""
        self.watch.note_leaves(tensors)
        for each in tensors:
            self.use(each.handle)
        for position in inferred.mutates:
            self.mutated.add(tensors[position].handle.storage)
        if inferred.random:
            self.random.add(device)

    def note_leaves(self, tensors: Iterable[Any]) -> None:
        """The arguments of an operation that will run on another device."""
        self.watch.note_leaves(tensors)

    def note_made(self, returned: Any) -> None:
        """What an operation returns."""
        for each in tensors_in(returned):
            if hasattr(each, "handle"):
                self._storages[each.handle.number] = each.handle.storage

    def use(self, handle: Handle) -> None:
        """Note a value that the call reads, if it is from before the call. The call may still free it."""
        if handle.number < self.start and handle.number not in self._used:
            self._used[handle.number] = weakref.ref(handle)

    def note_copy(self, handle: Handle) -> None:
        """A value that was sent to another task."""
        self.use(handle)
        self._copied.append(handle)

    def note_feed(self, task: str, handle: Handle, tensor: torch.Tensor) -> None:
        """A local tensor that was sent."""
        self._storages[handle.number] = handle.storage
        self.sequence.append(FedTensor(task, handle.number, tensor))

    def note_local(self, func: Any, args: Any, kwargs: Any, returned: Any) -> None:
        """An operation on local tensors."""
        if func.namespace == "profiler":
            return
        if func is LOCAL_SCALAR:
            if id(args[0]) in self._written_here:
                self.trouble = (
                    "it reads a number that changes at every step (an optimizer's step count? use fused=True)"
                )
            self.guards.append((args[0], returned))
            return
        for each in tensors_in(returned):
            self._written_here.add(id(each))
        self.sequence.append(LocalCall(func, args, kwargs, returned))

    def prune(self, outputs: Sequence[Any]) -> None:
        """Leave out local operations on which nothing depends that was sent or returned."""
        needed = {id(each) for each in outputs}
        kept: list[LocalCall | FedTensor] = []
        for event in reversed(self.sequence):
            if isinstance(event, FedTensor):
                needed.add(id(event.tensor))
            elif schema_of(event.func).is_mutable or any(
                id(each) in needed for each in tensors_in(event.returned)
            ):
                needed.update(id(each) for each in tensors_in((event.args, event.kwargs)))
            else:
                continue
            kept.append(event)
        self.sequence = kept[::-1]

    # --- after the call -----------------------------------------------------------------------------------
    def forget_copies(self) -> None:
        """Each replay makes its copies anew, so those of this call must not be used again."""
        for handle in self._copied:
            for device, (_, copy) in list((handle.copies or {}).items()):
                if copy.number >= self.start and handle.copies is not None:
                    del handle.copies[device]

    def will_change(self, kept: Iterable[int]) -> None:
        """Each replay changes the values that the program still holds, so that their copies become stale."""
        self.mutated.update(self._storages[number] for number in kept if number in self._storages)

    def part(self, tape: Sequence[list[Any]], arguments: dict[int, int]) -> TaskShare:
        """One task's share of what was sent. `arguments` maps values whose numbers change from replay to
        replay to numbers of the plan.
        """
        part = TaskShare()
        dropped: set[int] = set()
        for record in (record for batch in tape for record in split(batch, self.client.widths)):
            code = record[0]
            if code >= 0:
                inputs, _, outputs = self.client.widths[code]
                part.made.update(range(record[2], record[2] + outputs))
                record = [
                    *record[:3],
                    *(arguments.get(n, n) for n in record[3 : 3 + inputs]),
                    *record[3 + inputs :],
                ]
            elif code == codes.PUT:
                part.made.add(record[1])
                part.feeds.append(record[1])
                continue
            elif code == codes.EXPECT:
                part.made.add(record[1])
            elif code == codes.SEND:
                record = [record[0], arguments.get(record[1], record[1]), *record[2:]]
            elif code == codes.DROP:
                mine = [number for number in record[1] if number in part.made]
                dropped.update(mine)
                if not mine:
                    continue
                record = [codes.DROP, mine]
            elif code in (codes.DEFINE, codes.SEED, codes.SEEN):
                continue
            else:
                raise NotReplayable(
                    "it waits for a value (item(), cpu(), print, or a shape that depends on values)"
                )
            part.records += record
        part.made -= dropped
        return part

    def keep_externals(self) -> None:
        """Keep the values that replays need. One that is gone was replaced by a value that the call made."""
        for number, reference in self._used.items():
            if (handle := reference()) is None:
                raise NotReplayable("it replaces a tensor that it has read: write to it (copy_) instead")
            self.externals[number] = handle


class LocalRecorder(TorchDispatchMode):
    """Notes what the call does with local tensors."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        returned = func(*args, **kwargs)
        if not any(hasattr(each, "handle") for each in tensors_in((args, kwargs, returned))):
            self._recording.note_local(func, args, kwargs, returned)
        return returned


def split(batch: Sequence[Any], widths: dict[int, tuple[int, int, int]]) -> Iterator[list[Any]]:
    """The instructions of a batch."""
    position = 0
    while position < len(batch):
        code = batch[position]
        if code >= 0:
            inputs, floats, _ = widths[code]
            width = 3 + inputs + floats
        else:
            width = codes.WIDTHS[code]
        yield list(batch[position : position + width])
        position += width


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments or results."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)


def replaced(value: Any, others: Mapping[int, Any]) -> Any:
    """Arguments or results with other tensors in the place of some, which are known by their `id`."""
    if isinstance(value, torch.Tensor):
        return others.get(id(value), value)
    if type(value) in (list, tuple):
        return type(value)(replaced(each, others) for each in value)
    if type(value) is dict:
        return {name: replaced(each, others) for name, each in value.items()}
    return value
