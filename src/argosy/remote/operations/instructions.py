"""What a batch of work is made of: one flat list of records, each a number and what belongs to it.

    number, site, first output, inputs..., floats...          run the template of this number (0 or more)
    DEFINE, template                                          what that number means from now on
    PUT, value, packing, frame, frames                        a tensor that came with this message
    SEND, value, task, value there, site                      give a value to another task
    EXPECT, value, task                                       a value that another task will send
    FETCH, request, values                                    the bytes of these values
    PROBE, request, template, first output, site, inputs, floats    run it and tell what came of it
    SEED, seed                                                begin the random numbers anew
    DROP, values                                              these are no longer needed
    FORGET                                                    all templates
    REPORT, request                                           what has run here
    WAIT, request                                             tell when all that came before has run
    RECORD, plan, records, feeds, kept, made                  keep records, to be carried out again and again
    REPLAY, plan, turn, feeds, binds, outputs                 carry them out
    UNRECORD, plan                                            forget them
    ALIAS, value, value                                       one more number for a value
    SEEN, error                                               the program was told of this error

The client writes them, the host reads and checks them. A template is an operation of PyTorch's own, with its
arguments: constants in place, and holes for tensors and floats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch

from argosy.errors import WireError
from argosy.remote.transport.tensor_codec import dtype_name, dtype_of

DEFINE, PUT, SEND, EXPECT, FETCH, PROBE, SEED, DROP, FORGET, REPORT, WAIT, RECORD, REPLAY, UNRECORD, ALIAS = (
    range(-1, -16, -1)
)
SEEN = -16
# How many items a record has, of those that are not operations.
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
    """One output of an operation: its shape as the client infers it, and the input that it is a view of."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    view_of: int = -1


class Template(msgspec.Struct, frozen=True, array_like=True):
    """An operation, ready to be run with tensors and floats; `results` is None where only running it
    tells.
    """

    number: int
    operation: str
    args: list[Any]
    kwargs: dict[str, Any]
    inputs: int
    floats: int
    device: str
    # Of what the operation returns, flattened: which are new values, and what they are.
    picks: tuple[int, ...]
    results: tuple[Result, ...] | None
    random: bool = False
    # Whether the client would have recorded for autograd: some kernels save more then.
    grad: bool = True


def write_argument(value: Any, is_hole: Callable[[float], bool]) -> Any:
    """An argument as it travels; tensors become holes, and floats where `is_hole` says so."""
    if isinstance(value, torch.Tensor):
        return [TENSOR]
    if isinstance(value, float):
        return [FLOAT] if is_hole(value) else value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        # A float inside a list is part of the signature.
        return [LIST, [write_argument(each, lambda _: False) for each in value]]
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


class Hole:
    """A place for a tensor or a float that the record brings; filled in the order in which they are read."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class FloatHole(Hole):
    """The same, for a float."""

    __slots__ = ()


class ArgumentReader:
    """Reads a template's arguments; counts the holes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.tensors = 0
        self.floats = 0

    def read(self, wire: Any) -> Any:
        """One argument; a WireError if it is none."""
        if wire is None or isinstance(wire, bool | int | float | str):
            return wire
        try:
            return self._read_tagged(*wire)
        except (KeyError, TypeError, ValueError):
            raise WireError(f"argument: {wire!r:.80}") from None

    def _read_tagged(self, tag: str, *rest: Any) -> Any:
        if tag == TENSOR:
            self.tensors += 1
            return Hole(self.tensors - 1)
        if tag == FLOAT:
            self.floats += 1
            return FloatHole(self.floats - 1)
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
