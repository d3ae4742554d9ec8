"""Which tensors of a captured step are computed in shared memory, so that they are sent without a copy.

Pure. A gradient that is computed here and updates a parameter on another task is often used here by nothing
but the message: then its operation writes to a send buffer. A parameter that each replay sends and updates
may live in a send buffer (`task/resident_parameters.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from argosy.remote.operations.kernel import Kernel
from argosy.remote.plan.dependencies import Dependencies, PlanItem
from argosy.remote.transport.tensor_codec import dense_strides, dtype_of

# Tensors of fewer bytes are copied, together with others, into one message.
MIN_BYTES = 128 * 1024


@dataclass(frozen=True)
class DirectSend:
    """Where an operation's result goes: the message that carries it, and its layout."""

    send: PlanItem
    operation: Any  # the form of the operation that writes to `out`
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    nbytes: int
    registers: tuple[int, ...]  # all values in that memory


def find_direct_sends(step: Dependencies) -> dict[int, DirectSend]:
    """By the index of the operation: those whose result, views aside, is used by one message only."""
    registers_in: dict[int, list[int]] = {}
    for number, register in enumerate(step.registers):
        registers_in.setdefault(register.memory, []).append(number)
    users: dict[int, list[PlanItem]] = {}
    for item in step.items:
        for memory in {step.registers[register].memory for register in item.inputs}:
            if item.kernel is None or not item.kernel.light:
                users.setdefault(memory, []).append(item)
    found: dict[int, DirectSend] = {}
    for item in step.items:
        if item.kernel is None or item.kernel.views != (-1,):
            continue
        memory = step.registers[item.outputs[0]].memory
        match users.get(memory):
            case [PlanItem(kernel=None) as send] if send.needs == item.needs:
                direct = _direct_send(item.kernel, send, tuple(registers_in[memory]))
                if direct is not None:
                    found[item.index] = direct
    return found


def _direct_send(kernel: Kernel, send: PlanItem, registers: tuple[int, ...]) -> DirectSend | None:
    """None if the result is small or not dense, or the operation cannot write to given memory."""
    operation = kernel.out_form()
    if operation is None or not kernel.results:
        return None
    result = kernel.results[0]
    shape, stride, dtype = tuple(result.shape), tuple(result.stride), dtype_of(result.dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < MIN_BYTES or dense_strides(shape, stride) != stride:
        return None
    return DirectSend(send, operation, dtype, shape, stride, nbytes, registers)


def may_reside(step: Dependencies, send: PlanItem) -> bool:
    """Whether a step sends a value from before it and also writes to it, as with a parameter."""
    register = send.inputs[0]
    is_external = register in step.externals.values()
    return is_external and step.memories[step.registers[register].memory].writer >= 0
