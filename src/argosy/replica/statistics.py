"""Whether a model that nobody has told us of keeps running statistics: found where the script holds it.

Not among all objects (`gc.get_objects`): whoever takes hold of those takes hold of tuples that other threads
are still making, and CPython then raises SystemError in them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from argosy.torch_private import NormBase

# These agree on their statistics by themselves.
_ALIKE = (nn.SyncBatchNorm,)


def keeps_statistics(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether a model with one of these parameters, held by the calling script, has BatchNorm or its like."""
    known = {id(parameter) for parameter in parameters}
    return any(
        any(id(parameter) in known for parameter in model.parameters())
        and any(_has_statistics(part) for part in model.modules())
        for model in _models()
    )


def _has_statistics(part: nn.Module) -> bool:
    return isinstance(part, NormBase) and not isinstance(part, _ALIKE) and part.running_mean is not None


def _models() -> Iterator[nn.Module]:
    """The modules that the callers have in a variable, in a container, or in an object's attribute."""
    seen: set[int] = set()
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        for names in (frame.f_locals, frame.f_globals):
            if id(names) not in seen:
                seen.add(id(names))
                held = [each for value in list(names.values()) for each in (value, *_parts(value))]
                # By type and not by isinstance: some objects pretend to be of another class, and load it.
                yield from (each for each in held if issubclass(type(each), nn.Module))


def _parts(value: object) -> list[Any]:
    kind = type(value)
    if kind in (list, tuple):
        return list(value)  # type: ignore[call-overload,no-any-return]
    if kind is dict:
        return list(value.values())  # type: ignore[attr-defined]
    if issubclass(kind, type | type(sys)):
        return []
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return list(attributes.values()) if isinstance(attributes, Mapping) else []
