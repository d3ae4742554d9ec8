"""What an operation writes to. The client and the task both ask here, so they agree on who waits for whom.

PyTorch's schemas say it, with two exceptions. The kernels of a few operations write to arguments of which the
schema says nothing; a slow test runs torch's tables of samples to find them. And an operation without results
only checks its tensors: it counts as one that writes to them, so that whoever reads them afterwards waits for
the check, and has its error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from argosy.torch_private import schema_of

_STATISTICS = ("running_mean", "running_var")
# Operation -> arguments that its kernel writes to, whatever the schema says; not when `training` is False.
UNSAID = {
    "aten::native_batch_norm": _STATISTICS,
    "aten::batch_norm_update_stats": _STATISTICS,
    "aten::batch_norm_gather_stats": _STATISTICS,
    "aten::batch_norm_gather_stats_with_counts": _STATISTICS,
    "aten::cudnn_batch_norm": _STATISTICS,
    "aten::miopen_batch_norm": _STATISTICS,
    "aten::mkldnn_rnn_layer_backward": ("workspace",),
}
# Not what an operation is for: it runs where its other arguments are, and these are written back.
_ASIDE = {*_STATISTICS, "workspace"}


@dataclass(frozen=True)
class _Place:
    """An argument that is written to."""

    position: int
    name: str
    is_said: bool


@functools.cache
def _places(operation: Any) -> tuple[_Place, ...]:
    schema = schema_of(operation)
    said = [each.alias_info is not None and each.alias_info.is_write for each in schema.arguments]
    unsaid = UNSAID.get(schema.name, ())
    only_checks = not schema.returns and not any(said)
    return tuple(
        _Place(position, argument.name, is_said)
        for position, (argument, is_said) in enumerate(zip(schema.arguments, said, strict=True))
        if is_said or only_checks or argument.name in unsaid
    )


@functools.cache
def _training(operation: Any) -> int:
    """The position of the argument `training`; -1 if there is none."""
    names = [argument.name for argument in schema_of(operation).arguments]
    return names.index("training") if "training" in names else -1


def written(
    operation: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    is_tensor: Callable[[Any], bool],
    *,
    aside: bool = True,
) -> Iterator[Any]:
    """The tensors among the arguments that a call writes to, or what stands for them; without `aside`, only
    those at home where it runs.
    """
    for place in _places(operation):
        if place.name in _ASIDE and (not aside or _only_reads(operation, place, args, kwargs)):
            continue
        value = args[place.position] if place.position < len(args) else kwargs.get(place.name)
        for each in value if isinstance(value, list | tuple) else (value,):
            if is_tensor(each):
                yield each


def _only_reads(operation: Any, place: _Place, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    position = _training(operation)
    if place.is_said or position < 0:
        return False
    return (args[position] if position < len(args) else kwargs.get("training", True)) is False


@functools.cache
def is_joint(operation: Any) -> bool:
    """Whether its results stand or fall together: torch looks at `info` afterwards, and it speaks for all."""
    return any(each.name == "info" for each in schema_of(operation).returns)
