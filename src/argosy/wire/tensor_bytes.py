"""Between torch tensors and the bytes of a frame, without a copy either way."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from argosy.errors import ConfigError
from argosy.protocol.frames import ITEMSIZE, Dtype, FrameSpec

_TORCH: dict[Dtype, torch.dtype] = {name: getattr(torch, name) for name in ITEMSIZE}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}


def dtype_name(dtype: torch.dtype, what: str = "tensor") -> Dtype:
    """The name of a dtype that may travel."""
    try:
        return _NAMES[dtype]
    except KeyError:
        raise ConfigError(f"dtype of {what}", f"one of {', '.join(_TORCH)}", dtype) from None


def torch_dtype(name: Dtype) -> torch.dtype:
    """The dtype of that name."""
    return _TORCH[name]


def spec_of(tensor: torch.Tensor) -> FrameSpec:
    """What a frame with this tensor says of itself."""
    return FrameSpec(dtype_name(tensor.dtype), tuple(tensor.shape))


def bytes_of(tensor: torch.Tensor) -> Any:
    """The memory of a contiguous CPU tensor as a buffer, which keeps the tensor alive.

    Through ctypes: torch's own way, `Tensor.numpy()`, needs NumPy and does not know bfloat16.
    """
    view = (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
    view.owner = tensor  # type: ignore[attr-defined]
    return view


def tensor_of(spec: FrameSpec, buffer: Any) -> torch.Tensor:
    """A tensor on the memory of a received, writable buffer, which it keeps alive."""
    if not spec.count:
        return torch.empty(spec.shape, dtype=_TORCH[spec.dtype])
    return torch.frombuffer(buffer, dtype=_TORCH[spec.dtype]).view(spec.shape)
