"""The words that all checks use: what has to agree, and what it means if it does not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Check = Callable[..., None]


def require(condition: bool, expected: str) -> None:
    """A ValueError unless it holds."""
    if not condition:
        raise ValueError(f"arguments that do not belong together: expected {expected}")


def same_shape(first: Tensor, *others: Tensor) -> None:
    """Whether tensors have one shape."""
    for each in others:
        if each.shape != first.shape:
            raise ValueError(f"expected tensors of one shape, got {[*first.shape]} and {[*each.shape]}")


def within(values: Tensor, low: int, high: int, name: str) -> None:
    """Whether indices lie in [low, high)."""
    if not values.numel():
        return
    least, most = (int(each) for each in torch.aminmax(values))
    if least < low or most >= high:
        raise ValueError(f"{name}: expected {low} to {high - 1}, got {least} to {most}")
