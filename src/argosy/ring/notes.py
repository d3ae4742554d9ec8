"""What each rank notes beside the buckets of a round, and what the round comes to. Pure.

A row is what a rank says about the round, what it wants of all, a mark on which all must agree, and the kind
of each piece that it gives. Rows of this host are compared as bytes; what other hosts need to know of them
goes as numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple

_HEAD = struct.Struct("<BBq")
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


class Wishes(IntFlag):
    """What a rank wants all to do after the next step."""

    SAVE = 1
    STOP = 2


NO_WISHES = Wishes(0)


class Said(NamedTuple):
    """The head of a rank's row."""

    says: Says
    wishes: Wishes
    mark: int


@dataclass(frozen=True)
class RoundOutcome:
    """What a round came to, the same on every rank.

    `givers`: how many gave something, `first` the lowest of them. `active`: how many are still training.
    `pieces`: the kind of each result, None if all are dense. `held`: whether somebody holds the step up.
    `odd`: two ranks whose marks differ. `everyone`: whether no rank has left. `wishes`: somebody's.
    """

    givers: int
    first: int
    active: int
    pieces: list[int] | None = None
    held: bool = False
    odd: tuple[int, int] | None = None
    everyone: bool = True
    wishes: Wishes = NO_WISHES

    @property
    def complete(self) -> bool:
        """Whether all who are still training gave something."""
        return self.givers == self.active


def head(says: Says, mark: int, wishes: Wishes = NO_WISHES) -> bytes:
    """The beginning of a row."""
    return _HEAD.pack(says, wishes, mark)


def read_head(row: bytes) -> Said:
    """What `head` has written."""
    says, wishes, mark = _HEAD.unpack(row[:HEAD])
    return Said(Says(says), Wishes(wishes), mark)


PLAIN = head(Says.GIVES, 0)[:2]  # how the row of a rank begins that gives, and wants nothing


def conclude(said: Mapping[int, Said], pieces: Sequence[int], everyone: bool = True) -> RoundOutcome:
    """The outcome of what each rank said, and of the kind of each piece."""
    givers = [rank for rank, each in said.items() if each.says == Says.GIVES]
    training = [(rank, each.mark) for rank, each in said.items() if each.says != Says.IS_DONE]
    odd = next(((training[0][0], rank) for rank, mark in training[1:] if mark != training[0][1]), None)
    wishes = NO_WISHES
    for each in said.values():
        wishes |= each.wishes
    return RoundOutcome(
        len(givers),
        givers[0] if givers else -1,
        len(training),
        None if all(kind == DENSE for kind in pieces) else list(pieces),
        any(each.says == Says.HOLDS for each in said.values()),
        odd,
        everyone,
        wishes,
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
