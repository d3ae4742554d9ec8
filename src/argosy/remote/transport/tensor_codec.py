"""Tensors as raw bytes and back, of any dtype. Dense tensors keep their strides.

The frames of a message are bytes (`uint8`); a tensor beyond the wire's limit takes several.
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

# The alignment of torch's own memory: elsewhere kernels sum in another order, and bits differ.
_ALIGNMENT = 64

_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith("torch.q")
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype on the wire."""
    return _NAMES[dtype]


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name from the wire; a WireError if there is none."""
    try:
        return _DTYPES[name]
    except (KeyError, TypeError):
        raise WireError(f"dtype: expected one of torch's, got {name!r:.40}") from None


def dense_strides(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """The strides of a copy: the same if the tensor is dense, else those of a contiguous one."""
    order = sorted(range(len(shape)), key=lambda d: (stride[d], shape[d]), reverse=True)
    expected, dense = 1, [0] * len(shape)
    for dim in reversed(order):
        if shape[dim] > 1 and stride[dim] != expected:
            return contiguous_strides(shape)
        dense[dim] = stride[dim]
        expected *= max(shape[dim], 1)
    return tuple(dense) if 0 not in shape else contiguous_strides(shape)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def pack(tensor: torch.Tensor, copy: bool = True) -> tuple[Packing, list[torch.Tensor]]:
    """A tensor's bytes as frames, and how to read them: a copy, or without `copy` its own memory if that is
    possible.
    """
    with without_dispatch():  # the tensor is local: no scope and no recording may see these operations
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
    # as_strided: the elements in the order of memory, whatever the order of the dimensions.
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset()).view(torch.uint8)
    return packing, list(flat.split(MAX_FRAME_BYTES)) if flat.numel() > MAX_FRAME_BYTES else [flat]


def frame_count(packing: Packing) -> int:
    """The number of frames of such a tensor."""
    return math.ceil(_nbytes(packing) / MAX_FRAME_BYTES)


class RepeatedPacker:
    """Packs one value of a captured step at each replay; its layout is found once."""

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
    """The tensor in these frames, whose sizes are checked."""
    dtype, nbytes = _checked(packing)
    for frame in frames:
        if frame.dtype is not torch.uint8:
            raise WireError(f"tensor: expected bytes, got {frame.dtype} for {packing}")
    if sum([frame.numel() for frame in frames]) != nbytes:
        raise WireError(f"tensor: expected {nbytes} bytes, got {sum(frame.numel() for frame in frames)}")
    with without_dispatch():
        if not nbytes:
            return torch.empty(packing.shape, dtype=dtype)
        data = frames[0] if len(frames) == 1 else torch.cat(list(frames))
        if data.data_ptr() % _ALIGNMENT:  # a frame may begin anywhere in the memory of its message
            data = data.clone()
        if data.storage_offset():
            return data.view(dtype).as_strided(packing.shape, packing.stride)
        # Not a view: that would keep another tensor of these bytes alive.
        return torch.empty(0, dtype=dtype).set_(data.untyped_storage(), 0, packing.shape, packing.stride)


@functools.lru_cache(4096)
def _checked(packing: Packing) -> tuple[torch.dtype, int]:
    """The dtype and size of a tensor; a WireError if it is not a valid one."""
    dtype = dtype_of(packing.dtype)
    if len(packing.shape) != len(packing.stride):
        raise WireError(f"tensor: expected a stride a dimension, got {packing}")
    if math.prod(packing.shape) and dense_strides(packing.shape, packing.stride) != packing.stride:
        raise WireError(f"tensor: expected strides without gaps, got {packing}")
    return dtype, _nbytes(packing)


def _nbytes(packing: Packing) -> int:
    return math.prod(packing.shape) * dtype_of(packing.dtype).itemsize
