"""What each rank notes beside the buckets of a round, and what the round comes to. Pure.

A row is what a rank says about the round, a mark on which all must agree, and the kind of each piece that it
gives. Rows of this host are compared as bytes; what other hosts need to know of them goes as numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

_HEAD = struct.Struct("<Bq")
HEAD = _HEAD.size
# The kinds of a piece: not there, dense, and from 2 on sparse in its first `kind - 1` dimensions.
ABSENT, DENSE = 0, 1
MOST_SPARSE = 3
# Numbers of ranks for each kind but the first, side by side in one whole number of 64 bits.
_FIELD = 15


class Says(IntEnum):
    """What a rank says about a round, before its first bucket."""

    SKIPS = 0
    GIVES = 1
    IS_DONE = 2
    HOLDS = 3  # there is more to come before the step


@dataclass(frozen=True)
class RoundOutcome:
    """What a round came to, the same on every rank.

    `givers`: how many gave something, `first` the lowest of them. `active`: how many are still training.
    `pieces`: the kind of each result, None if all are dense. `held`: whether somebody holds the step up.
    `odd`: two ranks whose marks differ. `everyone`: whether no rank has left.
    """

    givers: int
    first: int
    active: int
    pieces: list[int] | None = None
    held: bool = False
    odd: tuple[int, int] | None = None
    everyone: bool = True

    @property
    def complete(self) -> bool:
        """Whether all who are still training gave something."""
        return self.givers == self.active


def head(says: Says, mark: int) -> bytes:
    """The beginning of a row."""
    return _HEAD.pack(says, mark)


def read_head(row: bytes) -> tuple[Says, int]:
    """What `head` has written."""
    says, mark = _HEAD.unpack(row[:HEAD])
    return Says(says), mark


def conclude(
    said: Sequence[tuple[int, Says, int]], pieces: Sequence[int], everyone: bool = True
) -> RoundOutcome:
    """The outcome of what each rank said with which mark, and of the kind of each piece."""
    givers = [rank for rank, says, _ in said if says == Says.GIVES]
    training = [(rank, mark) for rank, says, mark in said if says != Says.IS_DONE]
    odd = next(((training[0][0], rank) for rank, mark in training[1:] if mark != training[0][1]), None)
    return RoundOutcome(
        len(givers),
        givers[0] if givers else -1,
        len(training),
        None if all(kind == DENSE for kind in pieces) else list(pieces),
        any(says == Says.HOLDS for _, says, _ in said),
        odd,
        everyone,
    )


def merge(kinds: Iterable[int]) -> int:
    """The kind of a sum: dense if one of its parts is."""
    there = [kind for kind in kinds if kind != ABSENT]
    return ABSENT if not there else DENSE if DENSE in there else max(there)


def to_number(kind: int) -> int:
    """A kind as a number that can be added to those of other hosts."""
    return 0 if kind == ABSENT else 1 << _FIELD * (kind - 1)


def from_number(number: int) -> int:
    """The kind of a sum of such numbers."""
    return merge(kind for kind in range(DENSE, MOST_SPARSE + 2) if number >> _FIELD * (kind - 1) & 0x7FFF)
