"""What a planted bug is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """`file` is below src/argosy, `tests` are below tests."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
