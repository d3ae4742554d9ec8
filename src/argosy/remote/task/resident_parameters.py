"""Tensors that live in the memory they are sent in, again and again: parameters.

A step that repeats sends a parameter, and updates it. Before the next update, when nobody else has to do with
it, it moves into a slot of the lane; from then on it is announced, not copied. The receiver gives the slot
back when it has read it. An update that comes sooner takes it back, and it is copied again, for a while: in
the first steps of a program a receiver may keep things longer than it will later.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from argosy.protocol.header import Header
from argosy.remote.plan.dependencies import Analysis
from argosy.remote.plan.direct_sends import WORTH_IT
from argosy.remote.plan.items import Item
from argosy.remote.task.scheduler import Group
from argosy.remote.transport.same_host import Lane
from argosy.remote.transport.send_buffers import Slot
from argosy.torch_private import storage_key, storage_uses

# A tensor, and the object that asks: more, and something else lies in the same memory.
_ONE_TENSOR = 2
# The first pause after which it is tried again; each is as many times longer than the one before.
_PAUSE = 4


@dataclass
class Mooring:
    """Where a tensor lives, and the lane that it is sent by. Once it was taken back, it is copied `pause`
    times before it moves again; `rest` of them are left.
    """

    lane: Lane
    slot: Slot
    pause: int
    rest: int


def may_moor(analysis: Analysis, send: Item) -> bool:
    """Whether a step sends what was there before it, and writes to it."""
    slot = send.inputs[0]
    is_old = slot in analysis.externals.values()
    return is_old and analysis.memories[analysis.slots[slot].memory].writer >= 0


def announce(group: Group, lane: Lane, header: Header, frame: torch.Tensor) -> bool:
    """Send what lies in the lane's memory already; False if it does not, or the receiver still reads it."""
    mooring = group.mooring
    if mooring is None or mooring.lane is not lane or frame.data_ptr() != mooring.slot.region.address:
        return False
    if not lane.lend(header, mooring.slot, frame.numel()):
        return False
    group.on_write = partial(lane.reclaim, mooring.slot)
    return True


def moor_at_next_write(group: Group, lane: Lane, tensor: torch.Tensor) -> None:
    """Whoever writes to a tensor is alone with it: that is when it can move."""
    if tensor.nbytes < WORTH_IT or group.on_write is not None:
        return
    mooring, pause = group.mooring, _PAUSE
    if mooring is not None:
        if mooring.lane is not lane or not mooring.slot.retired:
            return
        mooring.rest -= 1
        if mooring.rest:
            return
        mooring.rest = mooring.pause
        pause = mooring.pause * _PAUSE
    group.on_write = partial(_moor, group, lane, tensor, pause)


@torch.no_grad()
def _moor(group: Group, lane: Lane, tensor: torch.Tensor, pause: int) -> None:
    """Move it, unless views of it would stay behind, or the lane has no memory for it."""
    storage = tensor.untyped_storage()
    shares = storage_uses(storage_key(storage)) > _ONE_TENSOR
    if shares or storage.nbytes() != tensor.nbytes or (slot := lane.home(tensor.nbytes)) is None:
        return
    home = slot.tensor(tensor.dtype, tensor.shape, tensor.stride()).copy_(tensor)
    tensor.set_(home.untyped_storage(), 0, tensor.shape, tensor.stride())
    lane.give_up(slot)
    group.mooring = Mooring(lane, slot, pause, pause)
