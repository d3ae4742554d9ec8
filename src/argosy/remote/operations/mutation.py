"""Which arguments an operation writes to. Client and task both ask here, so that they agree on the order.

PyTorch's schemas say so, with two exceptions. A few kernels write to arguments that their schema does not
declare; a slow test runs torch's tables of samples to find them. An operation without results only checks its
tensors: it counts as a writer, so that later readers wait for the check and get its error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from argosy.torch_private import schema_of

_STATISTICS = ("running_mean", "running_var")
# Operation -> arguments that its kernel writes to, although undeclared; not when `training` is False.
UNDECLARED = {
    "aten::native_batch_norm": _STATISTICS,
    "aten::batch_norm_update_stats": _STATISTICS,
    "aten::batch_norm_gather_stats": _STATISTICS,
    "aten::batch_norm_gather_stats_with_counts": _STATISTICS,
    "aten::cudnn_batch_norm": _STATISTICS,
    "aten::miopen_batch_norm": _STATISTICS,
    "aten::mkldnn_rnn_layer_backward": ("workspace",),
}
# Side effects: the operation runs where its other arguments are, and these are copied back.
_SIDE_EFFECTS = {*_STATISTICS, "workspace"}


@dataclass(frozen=True)
class _WrittenArgument:
    """An argument that is written to."""

    position: int
    name: str
    is_declared: bool


@functools.cache
def _written_arguments(operation: Any) -> tuple[_WrittenArgument, ...]:
    schema = schema_of(operation)
    declared = [each.alias_info is not None and each.alias_info.is_write for each in schema.arguments]
    undeclared = UNDECLARED.get(schema.name, ())
    only_checks = not schema.returns and not any(declared)
    return tuple(
        _WrittenArgument(position, argument.name, is_declared)
        for position, (argument, is_declared) in enumerate(zip(schema.arguments, declared, strict=True))
        if is_declared or only_checks or argument.name in undeclared
    )


def argument_names(operation: Any) -> list[str]:
    """The names of an operation's arguments, in order."""
    return [argument.name for argument in schema_of(operation).arguments]


@functools.cache
def _training(operation: Any) -> int:
    """The position of the argument `training`; -1 without one."""
    names = argument_names(operation)
    return names.index("training") if "training" in names else -1


def mutated(
    operation: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    is_tensor: Callable[[Any], bool],
    *,
    side_effects: bool = True,
) -> Iterator[Any]:
    """The arguments for which `is_tensor` holds that a call writes to; side effects such as the running
    statistics of a batch norm only with `side_effects`.
    """
    for argument in _written_arguments(operation):
        is_aside = argument.name in _SIDE_EFFECTS
        if is_aside and (not side_effects or _only_reads(operation, argument, args, kwargs)):
            continue
        value = args[argument.position] if argument.position < len(args) else kwargs.get(argument.name)
        for each in value if isinstance(value, list | tuple) else (value,):
            if is_tensor(each):
                yield each


def _only_reads(
    operation: Any, argument: _WrittenArgument, args: Sequence[Any], kwargs: dict[str, Any]
) -> bool:
    position = _training(operation)
    if argument.is_declared or position < 0:
        return False
    return (args[position] if position < len(args) else kwargs.get("training", True)) is False


@functools.cache
def has_joint_results(operation: Any) -> bool:
    """Whether an error in one result is an error in all: torch checks `info` for the others."""
    return any(each.name == "info" for each in schema_of(operation).returns)
