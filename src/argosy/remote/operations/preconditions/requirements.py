"""What all checks use: conditions, and the errors if they do not hold."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Check = Callable[..., None]
# By operation: its check, and the names of those of its arguments that the check takes, in order. One that
# some form of the operation does not have is None there.
Checks = dict[str, tuple[Check, str]]


def require(condition: bool, expected: str) -> None:
    """Raise a ValueError unless the condition holds."""
    if not condition:
        raise ValueError(f"arguments do not match: expected {expected}")


def same_shape(first: Tensor, *others: Tensor) -> None:
    """Raise a ValueError unless all tensors have the same shape."""
    for each in others:
        if each.shape != first.shape:
            raise ValueError(f"expected tensors of one shape, got {[*first.shape]} and {[*each.shape]}")


def within(values: Tensor, low: int, high: int, name: str) -> None:
    """Raise a ValueError unless all indices are in [low, high)."""
    if not values.numel():
        return
    least, most = (int(each) for each in torch.aminmax(values))
    if least < low or most >= high:
        raise ValueError(f"{name}: expected {low} to {high - 1}, got {least} to {most}")
