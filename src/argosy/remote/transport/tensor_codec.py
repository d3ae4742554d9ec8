"""Tensors as raw bytes and back: of any dtype, with their strides where the elements lie densely.

The frames of a message are bytes (`uint8`), cut where the wire's limit on a frame demands it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from argosy.errors import WireError
from argosy.protocol.frames import MAX_FRAME_BYTES
from argosy.protocol.remote_work import Packing
from argosy.torch_private import without_dispatch

# As torch's own memory is aligned: kernels sum in another order elsewhere, and bits differ.
_ALIGNMENT = 64

_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith("torch.q")
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """The name that travels."""
    return _NAMES[dtype]


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name that came; a WireError if there is none."""
    try:
        return _DTYPES[name]
    except (KeyError, TypeError):
        raise WireError(f"dtype: expected one of torch's, got {name!r:.40}") from None


def dense_strides(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """The strides of a copy: the same where elements lie without gaps, else those of a contiguous tensor."""
    order = sorted(range(len(shape)), key=lambda d: (stride[d], shape[d]), reverse=True)
    expected, dense = 1, [0] * len(shape)
    for dim in reversed(order):
        if shape[dim] > 1 and stride[dim] != expected:
            return contiguous_strides(shape)
        dense[dim] = stride[dim]
        expected *= max(shape[dim], 1)
    return tuple(dense) if 0 not in shape else contiguous_strides(shape)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row by row."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def pack(tensor: torch.Tensor, copy: bool = True) -> tuple[Packing, list[torch.Tensor]]:
    """A copy of a tensor, as frames, and how to read them; without `copy`, its own memory where that can
    be.
    """
    with without_dispatch():  # ordinary tensors only: no scope and no recording has to do with them
        return _pack(tensor.detach().resolve_conj().resolve_neg(), copy)


def _pack(tensor: torch.Tensor, copy: bool) -> tuple[Packing, list[torch.Tensor]]:
    if tensor.layout is not torch.strided:
        raise TypeError(f"a {tensor.layout} tensor cannot travel: call to_dense() first")
    stride = dense_strides(tensor.shape, tensor.stride())
    packing = Packing(dtype_name(tensor.dtype), tuple(tensor.shape), stride)
    if not tensor.numel():
        return packing, []
    if copy or tensor.stride() != stride or tensor.device.type != "cpu":
        tensor = torch.empty_strided(packing.shape, stride, dtype=tensor.dtype).copy_(tensor)
    # as_strided: a view of the memory in its own order, whatever the order of the dimensions.
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()).view(torch.uint8)
    return packing, list(flat.split(MAX_FRAME_BYTES)) if flat.numel() > MAX_FRAME_BYTES else [flat]


def frame_count(packing: Packing) -> int:
    """Into how many frames such a tensor is packed."""
    return math.ceil(_nbytes(packing) / MAX_FRAME_BYTES)


class Shipping:
    """Packs one value of a step that repeats, again and again: how its bytes lie is found out once."""

    __slots__ = ("_count", "_packing")

    def __init__(self) -> None:
        self._packing: Packing | None = None
        self._count = 0

    def pack(self, tensor: torch.Tensor, copy: bool) -> tuple[Packing, list[torch.Tensor]]:
        """See `pack`."""
        if self._packing is not None and not copy and tensor.stride() == self._packing.stride:
            return self._packing, [tensor.as_strided((self._count,), (1,)).view(torch.uint8)]
        packing, frames = pack(tensor, copy)
        plain = not tensor.is_conj() and not tensor.is_neg() and tensor.device.type == "cpu"
        if plain and len(frames) == 1 and tensor.stride() == packing.stride:
            self._packing, self._count = packing, tensor.numel()
        return packing, frames


def unpack(packing: Packing, frames: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensor; everything is checked against what came."""
    dtype, nbytes = _checked(packing)
    for frame in frames:
        if frame.dtype is not torch.uint8:
            raise WireError(f"tensor: expected bytes, got {frame.dtype} for {packing}")
    if sum([frame.numel() for frame in frames]) != nbytes:
        raise WireError(f"tensor: expected {nbytes} bytes, got other frames")
    with without_dispatch():
        if not nbytes:
            return torch.empty(packing.shape, dtype=dtype)
        data = frames[0] if len(frames) == 1 else torch.cat(list(frames))
        if data.data_ptr() % _ALIGNMENT:  # a frame begins anywhere in its message's memory
            data = data.clone()
        if data.storage_offset():
            return data.view(dtype).as_strided(packing.shape, packing.stride)
        # Not a view, which would keep another tensor of these bytes alive.
        return torch.empty(0, dtype=dtype).set_(data.untyped_storage(), 0, packing.shape, packing.stride)


@functools.lru_cache(4096)
def _checked(packing: Packing) -> tuple[torch.dtype, int]:
    """The dtype and the size of a tensor, if it is one that may travel."""
    dtype = dtype_of(packing.dtype)
    if len(packing.shape) != len(packing.stride):
        raise WireError(f"tensor: expected a stride a dimension, got {packing}")
    if math.prod(packing.shape) and dense_strides(packing.shape, packing.stride) != packing.stride:
        raise WireError(f"tensor: expected strides without gaps, got {packing}")
    return dtype, _nbytes(packing)


def _nbytes(packing: Packing) -> int:
    return math.prod(packing.shape) * dtype_of(packing.dtype).itemsize
