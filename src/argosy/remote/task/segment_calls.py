"""What a row of a captured step consists of: operations with their arguments in place, and messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from argosy.protocol.remote_work import Item as Sent
from argosy.protocol.remote_work import Parcel
from argosy.remote.operations.kernel import Bare
from argosy.remote.plan.direct_sends import Berth
from argosy.remote.plan.items import Item
from argosy.remote.task.resident_parameters import announce, moor_at_next_write
from argosy.remote.task.runs import MUCH, Call, Frame, Run
from argosy.remote.transport.tensor_codec import Shipping
from argosy.torch_private import set_grad_enabled


def flush(_: Frame, run: Run) -> None:
    """Send what waits to be sent."""
    run.flush()


def flush_much(_: Frame, run: Run) -> None:
    """Send it if it is much."""
    if run.size > MUCH:
        run.flush()


def set_grad(_: Frame, run: Run) -> None:
    """As it was when the step was recorded."""
    set_grad_enabled(True)


def set_no_grad(_: Frame, run: Run) -> None:
    """As it was when the step was recorded."""
    set_grad_enabled(False)


def forgetter(dies: Sequence[int]) -> Call:
    """Empties slots."""

    def call(frame: Frame, run: Run) -> None:
        for slot in dies:
            frame[slot] = None

    return call


def sender(item: Item, berth: Berth | None = None) -> Call:
    """A value for another task; one that was made in the memory for it is only announced."""
    slot, task, there, shipping = item.inputs[0], item.task, item.there, Shipping()

    def call(frame: Frame, run: Run) -> None:
        replay = run.replay
        packing, frames = shipping.pack(frame[slot], copy=replay.session.mail.lane(task) is None)
        sent = Sent(there, replay.turn, packing)
        if berth is None or not _leave_berth(item, berth, sent, frames, run):
            run.post(task, sent, frames)

    return call


def moored_sender(item: Item) -> Call:
    """A value for another task, which is the same from step to step and only announced if it can be."""
    slot, task, there, shipping = item.inputs[0], item.task, item.there, Shipping()

    def call(frame: Frame, run: Run) -> None:
        replay, tensor = run.replay, frame[slot]
        lane = replay.session.mail.lane(task)
        packing, frames = shipping.pack(tensor, copy=lane is None)
        sent = Sent(there, replay.turn, packing)
        if lane is None or len(frames) != 1:
            run.post(task, sent, frames)
            return
        group = replay.values[slot].group
        if not announce(group, lane, Parcel(replay.session.client, (sent,)), frames[0]):
            run.post(task, sent, frames)
            moor_at_next_write(group, lane, tensor)

    return call


def careful(item: Item) -> Call:
    """An operation with everything checked."""
    if item.compiled is None:
        return sender(item)
    compiled, floats = item.compiled, item.floats

    def call(frame: Frame, run: Run) -> None:
        tensors = [frame[slot] for slot in item.inputs]
        for slot, tensor in zip(
            item.outputs, compiled.call(tensors, floats, run.replay.session.generator), strict=True
        ):
            frame[slot] = tensor

    return call


def then_forget(first: Call, dies: Sequence[int]) -> Call:
    """A call that empties slots afterwards."""

    def call(frame: Frame, run: Run) -> None:
        first(frame, run)
        for slot in dies:
            frame[slot] = None

    return call


def bare(item: Item, form: Bare, dies: Sequence[int]) -> Call:
    """The operation itself, its arguments in place; slots that die with it are emptied."""
    operation, arguments, kwargs, is_single = form.operation, form.arguments, form.kwargs, form.is_single
    precondition = form.precondition
    fill = [(position, item.inputs[number]) for position, number in form.holes]
    outputs = list(zip(item.outputs, form.picks, strict=True))
    only = item.outputs[0] if is_single else 0

    def call(frame: Frame, run: Run) -> None:
        args = arguments.copy()
        for position, slot in fill:
            args[position] = frame[slot]
        if precondition is not None:
            precondition(*args, **kwargs)
        returned = operation(*args, **kwargs)
        if is_single:
            frame[only] = returned
        else:
            for slot, pick in outputs:
                frame[slot] = returned[pick]
        for slot in dies:
            frame[slot] = None

    return call


def berthed(item: Item, form: Bare, dies: Sequence[int], berth: Berth) -> Call:
    """The operation in the form that writes to memory it is given, if the lane has some for it."""
    made, send = item.outputs[0], berth.send
    fill = [(position, item.inputs[number]) for position, number in form.holes]
    ordinary = bare(item, form, dies)

    def call(frame: Frame, run: Run) -> None:
        lane = run.replay.session.mail.lane(send.task)
        slot = None if lane is None else lane.berth(berth.nbytes)
        if lane is None or slot is None:
            ordinary(frame, run)
            return
        run.berths[send.index] = (lane, slot)
        args = form.arguments.copy()
        for position, number in fill:
            args[position] = frame[number]
        if form.precondition is not None:
            form.precondition(*args, **form.kwargs)
        out = slot.tensor(berth.dtype, berth.shape, berth.stride)
        frame[made] = berth.operation(*args, **form.kwargs, out=out)
        for number in dies:
            frame[number] = None

    return call


def _leave_berth(item: Item, berth: Berth, sent: Sent, frames: list[torch.Tensor], run: Run) -> bool:
    """Announce what was made in its berth; False if that is not where it is, or not all of it."""
    lane, slot = run.berths.get(item.index, (None, None))
    if lane is None or slot is None or frames[0].data_ptr() != slot.memory.data_ptr():
        return False
    if frames[0].numel() != berth.nbytes:
        return False
    del run.berths[item.index]
    replay = run.replay
    for number in berth.slots:
        if (value := replay.values.get(number)) is not None:
            value.group.on_write = partial(lane.take_back, slot)
    lane.send_berth(Parcel(replay.session.client, (sent,)), slot, berth.nbytes)
    return True
