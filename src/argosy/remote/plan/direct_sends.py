"""Which tensors of a captured step are made in the very memory that they are sent in.

A gradient that is computed here and updates a parameter there is of use here to nobody but the message that
takes it along. The operation that makes it writes to the lane's slot then, and it is not copied. What the
client still knows of it afterwards stays there, and is taken back before somebody writes to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from argosy.remote.operations.kernel import Compiled
from argosy.remote.plan.dependencies import Analysis
from argosy.remote.plan.items import Item
from argosy.remote.transport.tensor_codec import dense_strides, dtype_of

# What is smaller is copied, with others, into one message, in bytes.
WORTH_IT = 128 * 1024


@dataclass(frozen=True)
class Berth:
    """Where an operation's result goes: the message that takes it along, and how it lies there."""

    send: Item
    operation: Any  # the form of the operation that writes to what it is given as `out`
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    nbytes: int
    slots: tuple[int, ...]  # all values in that memory


def find_berths(analysis: Analysis) -> dict[int, Berth]:
    """For items of a step, by index. Views apart, one message is all that may use what they make."""
    slots_in: dict[int, list[int]] = {}
    for number, slot in enumerate(analysis.slots):
        slots_in.setdefault(slot.memory, []).append(number)
    users: dict[int, list[Item]] = {}
    for item in analysis.items:
        for memory in {analysis.slots[slot].memory for slot in item.inputs}:
            if item.compiled is None or not item.compiled.light:
                users.setdefault(memory, []).append(item)
    found: dict[int, Berth] = {}
    for item in analysis.items:
        if item.compiled is None or item.compiled.views != (-1,):
            continue
        memory = analysis.slots[item.outputs[0]].memory
        match users.get(memory):
            case [Item(compiled=None) as send] if send.needs == item.needs:
                berth = _berth(item.compiled, send, tuple(slots_in[memory]))
                if berth is not None:
                    found[item.index] = berth
    return found


def _berth(compiled: Compiled, send: Item, slots: tuple[int, ...]) -> Berth | None:
    """None for what is small, has gaps, or no form that writes to memory it is given."""
    operation = compiled.out_form()
    if operation is None or not compiled.results:
        return None
    result = compiled.results[0]
    shape, stride, dtype = tuple(result.shape), tuple(result.stride), dtype_of(result.dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < WORTH_IT or dense_strides(shape, stride) != stride:
        return None
    return Berth(send, operation, dtype, shape, stride, nbytes, slots)
