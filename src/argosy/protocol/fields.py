"""The types of the fields that headers share, and the base of all headers."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Index = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
Hyperparameter: TypeAlias = float | int | bool | str | tuple[float, ...] | None
Group: TypeAlias = dict[str, Hyperparameter]
# The updates of a block's elements so far, by ranges of (start, stop, count).
UpdateCounts: TypeAlias = tuple[tuple[Count, Count, float], ...]


class HeaderBase(msgspec.Struct, frozen=True, omit_defaults=True):
    """The base of all headers: immutable, and small on the wire."""
