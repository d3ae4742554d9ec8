"""What a captured step consists of, once it is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from argosy.remote.operations.kernel import Compiled


@dataclass
class Item:
    """An operation, or a value that is sent. Slots are places in a list that each replay has of its own."""

    index: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    compiled: Compiled | None = None
    floats: tuple[float, ...] = ()
    site: int = -1
    task: str = ""
    there: int = 0
    needs: int = 0  # the values from elsewhere that it depends on, one bit each
    after: set[int] = field(default_factory=set)
    home: int = -1  # of what is sent: the item after which it can leave
