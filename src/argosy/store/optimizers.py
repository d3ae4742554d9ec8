"""Which optimizers the servers run, and how one travels: a class name and numbers, never code.

The servers keep parameters in flat blocks, so an optimizer must treat every element alone. These do.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch

from argosy.errors import ConfigError
from argosy.protocol.fields import Group, Hyperparameter
from argosy.protocol.joining import OptimizerSpec

SUPPORTED: dict[str, type[torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "Adagrad": torch.optim.Adagrad,
    "RMSprop": torch.optim.RMSprop,
}
# How torch computes, not what: the server decides these for itself.
IMPLEMENTATION = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
_HYPERPARAMETERS = {
    name: frozenset(inspect.signature(kind).parameters) - IMPLEMENTATION for name, kind in SUPPORTED.items()
}


def describe(optimizer: torch.optim.Optimizer) -> OptimizerSpec:
    """An optimizer as data; refused by name if the servers cannot run it."""
    name = type(optimizer).__name__
    if type(optimizer) is not SUPPORTED.get(name):
        known = ", ".join(f"torch.optim.{known}" for known in SUPPORTED)
        raise ConfigError(
            "optimizer",
            f"one of {known}",
            f"{type(optimizer).__module__}.{name}",
            "the servers run optimizers that treat every element alone",
        )
    return OptimizerSpec(name, groups_of(optimizer))


def disagreement(
    step: str, first: str, mine: Sequence[Group], other: str, theirs: Sequence[Group]
) -> ConfigError:
    """Two workers of a step that all must make alike have other hyperparameters."""
    field, expected, got = _difference(mine, theirs)
    return ConfigError(
        f"{field} of {other} in {step}", f"{expected}, as on {first}", got, "set the same on every worker"
    )


def _difference(one: Sequence[Group], other: Sequence[Group]) -> tuple[str, object, object]:
    for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        for key in sorted(mine.keys() | theirs.keys()):
            if mine.get(key) != theirs.get(key):
                return f"{key} of group {index}", mine.get(key), theirs.get(key)
    return "the number of parameter groups", len(one), len(other)


def groups_of(optimizer: torch.optim.Optimizer) -> tuple[Group, ...]:
    """The hyperparameters of each parameter group, as plain values."""
    keys = _HYPERPARAMETERS[type(optimizer).__name__]
    return tuple(
        {key: _plain(key, value) for key, value in group.items() if key in keys}
        for group in optimizer.param_groups
    )


class Hyperparameters:
    """The hyperparameters of an optimizer at every step: made plain again only when they have changed."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        names = (
            _HYPERPARAMETERS[type(optimizer).__name__] & optimizer.defaults.keys()
        )  # every group has these
        self._read = itemgetter(*sorted(names))
        self._seen: list[tuple[Any, ...]] = []
        self._groups: tuple[Group, ...] = ()

    def now(self) -> tuple[Group, ...]:
        """See `groups_of`; the same object as before if nothing is new."""
        seen = [self._read(group) for group in self._optimizer.param_groups]
        if not self._seen or seen != self._seen:
            self._groups = groups_of(self._optimizer)
            # A tensor or a list may change and stay the same object: then there is nothing to compare with.
            mutable = any(isinstance(value, torch.Tensor | list) for values in seen for value in values)
            self._seen = [] if mutable else seen
        return self._groups


def _plain(key: str, value: Any) -> Hyperparameter:
    if isinstance(value, torch.Tensor):
        return float(value)
    if isinstance(value, tuple | list):
        return tuple(float(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"hyperparameter {key}", "a number", repr(value))
