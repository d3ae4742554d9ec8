"""The hyperparameters of an optimizer as plain values, and back: what is saved of its parameter groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Of each parameter group, what is plain: numbers, words, and short lists of numbers."""
    return [
        {key: float(v) if isinstance(v, torch.Tensor) else v for key, v in group.items() if is_plain(v)}
        for group in optimizer.param_groups
    ]


def take_groups(optimizer: torch.optim.Optimizer, groups: Sequence[dict[str, Any]], first: int = 0) -> None:
    """Set those that the optimizer has, of the groups from number `first` on."""
    for group, saved in zip(optimizer.param_groups[first:], groups[first:], strict=False):
        for key in group.keys() & saved.keys():
            if isinstance(group[key], torch.Tensor):
                group[key].fill_(saved[key])
            else:
                group[key] = tuple(saved[key]) if isinstance(group[key], tuple) else saved[key]


def is_plain(value: object) -> bool:
    """Whether a value can be saved among the hyperparameters."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not isinstance(value, torch.nn.Parameter)
    if isinstance(value, list | tuple):
        return all(isinstance(item, bool | int | float) for item in value)
    return value is None or isinstance(value, bool | int | float | str)
