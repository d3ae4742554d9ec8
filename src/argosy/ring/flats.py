"""Tensors as the ring takes them: dense, on the CPU, and flat."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from argosy.errors import ConfigError


class Flat:
    """A tensor as a flat one; what becomes of that goes back into a tensor that is not contiguous.

    `written`: whether something becomes of it at all, else it is only read.
    """

    def __init__(self, tensor: torch.Tensor, written: bool = True) -> None:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise ConfigError("tensor", "a dense one on the CPU", f"{tensor.layout} on {tensor.device}")
        self._tensor = tensor.detach()
        self._whole = self._tensor.contiguous()
        self._flat = flat_of(self._whole)
        self._goes_back = written and self._whole is not self._tensor
        if self._goes_back and _overlaps(self._tensor):
            raise ConfigError(
                "tensor", "elements that do not share memory", "an expanded one", "clone() it first"
            )

    def __enter__(self) -> torch.Tensor:
        return self._flat

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None and self._goes_back:
            self._tensor.copy_(self._whole)


def _overlaps(tensor: torch.Tensor) -> bool:
    places = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in places)


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor, real ones; its own memory if it is contiguous."""
    flat = tensor.detach().contiguous().view(-1)
    return torch.view_as_real(flat).view(-1) if flat.is_complex() else flat


class Flats:
    """The same for many."""

    def __init__(self, tensors: Sequence[torch.Tensor], written: bool = True) -> None:
        self._each = [Flat(tensor, written) for tensor in tensors]
        self._stack = ExitStack()

    def __enter__(self) -> list[torch.Tensor]:
        return [self._stack.enter_context(each) for each in self._each]

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self._stack.close()


def split_by(flat: torch.Tensor, whole: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[torch.Tensor]:
    """`flat`, which is `whole`'s, cut along its first dimension; without sizes, evenly."""
    if sizes:
        rows = sum(sizes)
    else:
        rows = len(whole)
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != len(whole):
        raise ConfigError("split sizes", f"{ranks} sizes that add up to {len(whole)}", list(sizes))
    width = flat.numel() // rows if rows else 0
    return list(flat.split([size * width for size in sizes]))


def alike(
    what: str, tensors: Sequence[torch.Tensor], model: torch.Tensor, ranks: int, sizes: bool = True
) -> None:
    """Refuse tensors that are not one for each rank, of the model's dtype and, unless told, of its size."""
    if len(tensors) != ranks:
        raise ConfigError(what, f"{ranks} tensors, one for each rank", len(tensors))
    for tensor in tensors:
        if tensor.dtype != model.dtype:
            raise ConfigError(what, f"tensors of {model.dtype}", tensor.dtype)
        if sizes and tensor.numel() != model.numel():
            raise ConfigError(what, f"tensors of {model.numel()} elements", tensor.numel())
