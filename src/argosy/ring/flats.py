"""Tensors as the ring takes them: dense, on the CPU, and flat."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from argosy.errors import ConfigError


class Flat:
    """A tensor as a flat one; what becomes of that goes back into a tensor that is not contiguous."""

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu" or tensor.is_sparse:
            raise ConfigError("tensor", "a dense one on the CPU", f"{tensor.layout} on {tensor.device}")
        self._tensor = tensor.detach()
        self._flat = flat_of(self._tensor)

    def __enter__(self) -> torch.Tensor:
        return self._flat

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None and not self._tensor.is_contiguous():
            self._tensor.copy_(self._flat.view(self._tensor.shape))


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor, real ones; its own memory if it is contiguous."""
    flat = tensor.detach().contiguous().view(-1)
    return torch.view_as_real(flat).view(-1) if flat.is_complex() else flat


class Flats:
    """The same for many."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._each = [Flat(tensor) for tensor in tensors]
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
        raise ConfigError("split sizes", f"{ranks} that make up {len(whole)}", list(sizes))
    width = flat.numel() // rows if rows else 0
    return list(flat.split([size * width for size in sizes]))
