"""What a segment of a captured step consists of: calls of operations with their arguments, and messages.

A call gets the registers, which hold the replay's values, and the run, which collects what is to be
sent. The functions here are called when a segment is built, and return its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from argosy.protocol.remote_work import Fault, Parcel
from argosy.protocol.remote_work import Item as SentValue
from argosy.remote.operations.kernel import BareCall
from argosy.remote.plan.dependencies import PlanItem
from argosy.remote.plan.direct_sends import DirectSend
from argosy.remote.task.resident_parameters import move_at_next_write, send_resident
from argosy.remote.task.scheduler import Value
from argosy.remote.transport.tensor_codec import RepeatedPacker
from argosy.torch_private import set_grad_enabled

if TYPE_CHECKING:
    from argosy.remote.task.client_session import ClientSession
    from argosy.remote.task.value_exchange import Outgoing
    from argosy.remote.transport.same_host import SameHostSender
    from argosy.remote.transport.send_buffers import SendBuffer

# With more bytes than this to send, they leave before an operation that is not quick.
_LARGE = 128 * 1024
# With more bytes than this to send, they leave before the next large tensor, so that the receiver can begin.
_VERY_LARGE = 1024 * 1024

Registers = list[Any]
Call = Callable[[Registers, "SegmentRun"], None]


@dataclass
class ReplayState:
    """One replay of a captured step: its values, and the errors of some of them."""

    session: ClientSession
    turn: int
    registers: Registers
    values: dict[int, Value]  # of the registers that come from outside or are visible there
    faults: dict[int, Fault] = field(default_factory=dict)  # by register
    # Memory that a failed operation was to write to.
    failed_memory: dict[int, Fault] = field(default_factory=dict)


class SegmentRun:
    """One segment of one replay while it runs: what it has to send."""

    __slots__ = ("buffers", "outgoing", "replay", "size")

    def __init__(self, replay: ReplayState) -> None:
        self.replay = replay
        self.outgoing: Outgoing = {}
        self.size = 0
        # The buffers of values that were computed in place and not sent yet, by the item that sends them.
        self.buffers: dict[int, tuple[SameHostSender, SendBuffer]] = {}

    def add(self, task: str, sent: SentValue, frames: list[torch.Tensor]) -> None:
        """Collect a value for another task."""
        size = sum([frame.numel() for frame in frames])
        if self.size > _VERY_LARGE and size > _LARGE:
            self.flush()
        items, all_frames = self.outgoing.setdefault(task, ([], []))
        items.append(sent)
        all_frames += frames
        self.size += size

    def flush(self) -> None:
        """Send what was collected."""
        if self.outgoing:
            outgoing, self.outgoing = self.outgoing, {}
            self.size = 0
            self.replay.session.exchange.send(outgoing)

    def close(self) -> None:
        """Send what is left, and free the buffers of messages that could not be sent."""
        self.flush()
        for sender, buffer in self.buffers.values():
            sender.cancel(buffer)


# --- messages ---------------------------------------------------------------------------------------------
def flush(_: Registers, run: SegmentRun) -> None:
    """Send what was collected."""
    run.flush()


def flush_if_large(_: Registers, run: SegmentRun) -> None:
    """Send what was collected if it is much."""
    if run.size > _LARGE:
        run.flush()


def send_value(item: PlanItem, direct: DirectSend | None = None) -> Call:
    """Send a value to another task: with a copy, unless it was computed in a send buffer."""
    register, task, there, packer = item.inputs[0], item.task, item.there, RepeatedPacker()

    def call(registers: Registers, run: SegmentRun) -> None:
        replay = run.replay
        packing, frames = packer.pack(
            registers[register], copy=replay.session.exchange.sender_to(task) is None
        )
        sent = SentValue(there, replay.turn, packing)
        if direct is None or not _send_direct(item, direct, sent, frames, run):
            run.add(task, sent, frames)

    return call


def send_parameter(item: PlanItem) -> Call:
    """Send a value from before the step: without a copy if it lives in a send buffer by now."""
    register, task, there, packer = item.inputs[0], item.task, item.there, RepeatedPacker()

    def call(registers: Registers, run: SegmentRun) -> None:
        replay, tensor = run.replay, registers[register]
        sender = replay.session.exchange.sender_to(task)
        packing, frames = packer.pack(tensor, copy=sender is None)
        sent = SentValue(there, replay.turn, packing)
        if sender is None or len(frames) != 1:
            run.add(task, sent, frames)
            return
        storage = replay.values[register].storage
        if not send_resident(storage, sender, Parcel(replay.session.client, (sent,)), frames[0]):
            run.add(task, sent, frames)
            move_at_next_write(storage, sender, tensor)

    return call


def _send_direct(
    item: PlanItem, direct: DirectSend, sent: SentValue, frames: list[torch.Tensor], run: SegmentRun
) -> bool:
    """Send a value that was computed in a buffer; False if it is not there, or not all of it."""
    sender, buffer = run.buffers.get(item.index, (None, None))
    if sender is None or buffer is None or frames[0].data_ptr() != buffer.memory.data_ptr():
        return False
    if frames[0].numel() != direct.nbytes:
        return False
    del run.buffers[item.index]
    replay = run.replay
    for register in direct.registers:
        if (value := replay.values.get(register)) is not None:
            value.storage.on_write = partial(sender.take_back, buffer)
    sender.send_kept(Parcel(replay.session.client, (sent,)), buffer, direct.nbytes)
    return True


# --- operations -------------------------------------------------------------------------------------------
def set_grad(on: bool) -> Call:
    """As it was when the step was recorded."""
    return lambda _, __: set_grad_enabled(on)


def then_clear(first: Call, freed: Sequence[int]) -> Call:
    """A call, after which registers are emptied."""

    def call(registers: Registers, run: SegmentRun) -> None:
        first(registers, run)
        for register in freed:
            registers[register] = None

    return call


def run_checked(item: PlanItem) -> Call:
    """An item with all checks."""
    if item.kernel is None:
        return send_value(item)
    kernel, floats = item.kernel, item.floats

    def call(registers: Registers, run: SegmentRun) -> None:
        tensors = [registers[register] for register in item.inputs]
        for register, tensor in zip(
            item.outputs, kernel.call(tensors, floats, run.replay.session.generator), strict=True
        ):
            registers[register] = tensor

    return call


def run_bare(item: PlanItem, form: BareCall, frees: Sequence[int]) -> Call:
    """The operation without checks; the registers of `frees` are emptied afterwards."""
    operation, arguments, kwargs, is_single = form.operation, form.arguments, form.kwargs, form.is_single
    precondition = form.precondition
    fill = [(position, item.inputs[number]) for position, number in form.placeholders]
    outputs = list(zip(item.outputs, form.picks, strict=True))
    only = item.outputs[0] if is_single else 0

    def call(registers: Registers, run: SegmentRun) -> None:
        args = arguments.copy()
        for position, register in fill:
            args[position] = registers[register]
        if precondition is not None:
            precondition(*args, **kwargs)
        returned = operation(*args, **kwargs)
        if is_single:
            registers[only] = returned
        else:
            for register, pick in outputs:
                registers[register] = returned[pick]
        for register in frees:
            registers[register] = None

    return call


def run_into_buffer(item: PlanItem, form: BareCall, frees: Sequence[int], direct: DirectSend) -> Call:
    """The operation in the form that writes to given memory, if the sender has a buffer for it."""
    made, send = item.outputs[0], direct.send
    fill = [(position, item.inputs[number]) for position, number in form.placeholders]
    ordinary = run_bare(item, form, frees)

    def call(registers: Registers, run: SegmentRun) -> None:
        sender = run.replay.session.exchange.sender_to(send.task)
        buffer = None if sender is None else sender.reserve(direct.nbytes)
        if sender is None or buffer is None:
            ordinary(registers, run)
            return
        run.buffers[send.index] = (sender, buffer)
        args = form.arguments.copy()
        for position, register in fill:
            args[position] = registers[register]
        if form.precondition is not None:
            form.precondition(*args, **form.kwargs)
        out = buffer.tensor(direct.dtype, direct.shape, direct.stride)
        registers[made] = direct.operation(*args, **form.kwargs, out=out)
        for register in frees:
            registers[register] = None

    return call
