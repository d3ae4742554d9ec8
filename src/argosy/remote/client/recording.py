"""What one call of a function does, written down: records for each task, and what the client does itself.

Made by `capture.py`. While a recording is under way, everything is done as ever; what is sent is also kept,
and operations on ordinary tensors are noted, to be done again at each replay.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
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

# References to a handle that only the recording holds: its own, and that of the call that counts.
_OURS = 2


class NotReplayable(Exception):
    """The call did something that a replay cannot do again; says what."""


@dataclass
class LocalCall:
    """An operation on ordinary tensors."""

    func: Any
    args: Any
    kwargs: Any
    returned: Any


@dataclass
class FedTensor:
    """An ordinary tensor that was sent."""

    task: str
    number: int
    tensor: torch.Tensor


@dataclass
class TaskShare:
    """The share of one task."""

    records: list[Any] = field(default_factory=list)
    made: set[int] = field(default_factory=set)
    feeds: list[int] = field(default_factory=list)


class Recording:
    """Collects while the call runs. `start` is the first number of a value that it makes."""

    def __init__(self, client: Client, known: Iterable[Any] = ()) -> None:
        """`known`: tensors that an earlier call has used, and may have given gradients to."""
        self.client = client
        self.watch = GradientTracker(known)
        self.start = client.number
        self.sequence: list[LocalCall | FedTensor] = []
        self.guards: list[tuple[torch.Tensor, Any]] = []
        self.externals: dict[int, Handle] = {}
        self.mutated: set[RemoteStorage] = set()
        self.random: set[RemoteDevice] = set()
        self.trouble = ""
        self._copied: list[Handle] = []
        self._memories: dict[int, RemoteStorage] = {}
        self._written_here: set[int] = set()

    # --- noted by dispatch and placing --------------------------------------------------------------------
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
        """What an operation is given that will run elsewhere."""
        self.watch.note_leaves(tensors)

    def note_made(self, returned: Any) -> None:
        """What an operation returns."""
        for each in tensors_in(returned):
            if hasattr(each, "handle"):
                self._memories[each.handle.number] = each.handle.storage

    def use(self, handle: Handle) -> None:
        """A value that was there before belongs to what the call needs."""
        if handle.number < self.start:
            self.externals[handle.number] = handle

    def note_copy(self, handle: Handle) -> None:
        """A value that was given to another task."""
        self.use(handle)
        self._copied.append(handle)

    def note_feed(self, task: str, handle: Handle, tensor: torch.Tensor) -> None:
        """An ordinary tensor that was sent."""
        self._memories[handle.number] = handle.storage
        self.sequence.append(FedTensor(task, handle.number, tensor))

    def note_local(self, func: Any, args: Any, kwargs: Any, returned: Any) -> None:
        """An operation on ordinary tensors."""
        if func.namespace == "profiler":
            return
        if func is LOCAL_SCALAR:
            if id(args[0]) in self._written_here:
                self.trouble = (
                    "it reads a number that changes at every step (an optimizer's count? use fused=True)"
                )
            self.guards.append((args[0], returned))
            return
        for each in tensors_in(returned):
            self._written_here.add(id(each))
        self.sequence.append(LocalCall(func, args, kwargs, returned))

    def prune(self, outputs: Sequence[Any]) -> None:
        """Leave out what the client did for nothing: no tensor that was sent or returned depends on it."""
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

    # --- afterwards ---------------------------------------------------------------------------------------
    def forget_copies(self) -> None:
        """Copies of this call are made anew at each replay: nobody else may take them for valid."""
        for handle in self._copied:
            for device, (_, copy) in list((handle.copies or {}).items()):
                if copy.number >= self.start and handle.copies is not None:
                    del handle.copies[device]

    def will_change(self, kept: Iterable[int]) -> None:
        """What somebody still holds is another value after each replay: copies that other devices were given
        are not.
        """
        self.mutated.update(self._memories[number] for number in kept if number in self._memories)

    def part(self, tape: Sequence[list[Any]], arguments: dict[int, int]) -> TaskShare:
        """One task's share, from what was sent to it; `arguments` are values with other numbers at each
        replay.
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

    def check_externals(self) -> None:
        """What was read, and is now held by nobody but us, was replaced by something that the call made."""
        for number in list(self.externals):
            if sys.getrefcount(self.externals[number]) <= _OURS:
                raise NotReplayable("it replaces a tensor that it has read: write to it (copy_) instead")


class LocalRecorder(TorchDispatchMode):
    """Sees what the call does with ordinary tensors."""

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
    """A batch as the client wrote it, record by record."""
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
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)
