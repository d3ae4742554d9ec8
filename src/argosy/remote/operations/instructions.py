"""The instructions of a batch of work: one flat list, each instruction a number and its arguments.

    number, site, first output, inputs..., floats...          run the template of this number (0 or more)
    DEFINE, template                                          the template of a number from now on
    PUT, value, packing, frame, frames                        a tensor that came with this message
    SEND, value, task, value there, site                      send a value to another task
    EXPECT, value, task                                       a value that another task will send
    FETCH, request, values                                    the bytes of these values
    PROBE, request, template, first output, site, inputs, floats    run it and describe its results
    SEED, seed                                                seed the generator
    DROP, values                                              free these values
    FORGET                                                    forget all templates
    REPORT, request                                           report what has run here
    WAIT, request                                             answer when all work before this is done
    RECORD, plan, records, feeds, kept, made                  keep the instructions of a captured step
    REPLAY, plan, turn, feeds, binds, outputs                 run a captured step
    UNRECORD, plan                                            forget a captured step
    ALIAS, value, value                                       another number for a value
    SEEN, error                                               the client has reported this error

The client writes them; the task reads and checks them. A template is an operation of PyTorch with its
arguments: constants, and placeholders for tensors and floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from argosy.errors import WireError
from argosy.remote.transport.tensor_codec import dtype_name, dtype_of

DEFINE, PUT, SEND, EXPECT, FETCH, PROBE, SEED, DROP, FORGET, REPORT, WAIT, RECORD, REPLAY, UNRECORD, ALIAS = (
    range(-1, -16, -1)
)
SEEN = -16
# The length of each instruction that is not an operation.
WIDTHS = {
    DEFINE: 2,
    PUT: 5,
    SEND: 5,
    EXPECT: 3,
    FETCH: 3,
    PROBE: 7,
    SEED: 2,
    DROP: 2,
    FORGET: 1,
    REPORT: 2,
    WAIT: 2,
    RECORD: 6,
    REPLAY: 6,
    UNRECORD: 2,
    ALIAS: 3,
    SEEN: 2,
}

_LAYOUTS = {"strided": torch.strided}
_FORMATS = {
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}

TENSOR, FLOAT, LIST, DTYPE, LAYOUT, FORMAT, DEVICE, COMPLEX = "t", "f", "l", "d", "y", "m", "v", "c"


class Result(msgspec.Struct, frozen=True, array_like=True):
    """An output of an operation as the client infers it; `view_of`: the input that it is a view of, or -1."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    view_of: int = -1


class Template(msgspec.Struct, frozen=True, array_like=True):
    """An operation to be called with tensors and floats. `results` is None if they are unknown before it
    runs.
    """

    number: int
    operation: str
    args: list[Any]
    kwargs: dict[str, Any]
    inputs: int
    floats: int
    device: str
    # Which of the returned values, flattened, are new, and what they are.
    picks: tuple[int, ...]
    results: tuple[Result, ...] | None
    random: bool = False
    # Whether autograd was recording in the client: some kernels then save more.
    grad: bool = True


def write_argument(value: Any, floats_vary: bool) -> Any:
    """An argument as it travels: a placeholder for a tensor, and for a float if `floats_vary`."""
    if isinstance(value, torch.Tensor):
        return [TENSOR]
    if isinstance(value, float):
        return [FLOAT] if floats_vary else value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        # A float inside a list is part of the signature.
        return [LIST, [write_argument(each, False) for each in value]]
    if isinstance(value, torch.dtype):
        return [DTYPE, dtype_name(value)]
    if isinstance(value, torch.device):
        return [DEVICE]
    if isinstance(value, complex):
        return [COMPLEX, value.real, value.imag]
    if isinstance(value, torch.layout) and value is torch.strided:
        return [LAYOUT, "strided"]
    if isinstance(value, torch.memory_format):
        return [FORMAT, str(value).removeprefix("torch.")]
    raise TypeError(f"an argument that cannot travel: {type(value).__name__} {value!r:.60}")


@dataclass(slots=True)
class TensorPlaceholder:
    """Stands for a tensor that comes with the instruction; numbered in the order of reading."""

    number: int


class FloatPlaceholder(TensorPlaceholder):
    """Stands for a float."""


class ArgumentReader:
    """Reads a template's arguments, and counts the placeholders."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.tensors = 0
        self.floats = 0

    def read(self, wire: Any) -> Any:
        """One argument; a WireError if it is not valid."""
        if wire is None or isinstance(wire, bool | int | float | str):
            return wire
        try:
            return self._read_tagged(*wire)
        except (KeyError, TypeError, ValueError):
            raise WireError(f"argument: {wire!r:.80}") from None

    def _read_tagged(self, tag: str, *rest: Any) -> Any:
        if tag == TENSOR:
            self.tensors += 1
            return TensorPlaceholder(self.tensors - 1)
        if tag == FLOAT:
            self.floats += 1
            return FloatPlaceholder(self.floats - 1)
        if tag == DEVICE:
            return self._device
        (value, *more) = rest
        if tag == LIST:
            return [self.read(each) for each in value]
        if tag == DTYPE:
            return dtype_of(value)
        if tag == COMPLEX:
            return complex(value, more[0])
        return _LAYOUTS[value] if tag == LAYOUT else _FORMATS[value]
