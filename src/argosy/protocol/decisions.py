"""What the coordinator decides. Every server carries out the same decisions in the same order.

Because the order is one and the same everywhere, the shards never disagree: a gradient counts on all servers
or on none, and the values that a worker pulls are one cut across all of them. Decisions travel between
servers as they are, hence msgspec structs.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

# "held": accepted for a step that is still being collected; only where tokens let a worker run ahead.
# "pulled": the answer to a request that brought no gradient.
Status: TypeAlias = Literal["applied", "dropped", "folded", "skipped", "held", "pulled"]


class Part(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One worker's contribution to a step."""

    worker: int
    seq: int
    weight: float = 1.0


class Apply(msgspec.Struct, frozen=True, tag="apply"):
    """Sum these parts in this order, divide by their weight, and update: this makes `step`."""

    step: int
    parts: tuple[Part, ...]


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """Tell a worker what became of its push, and give it the values as they are at this point."""

    worker: int
    seq: int
    status: Status
    step: int
    staleness: int = 0
    stop: bool = False
    cut: bool = False  # a step has been saved since the last answer: give your own state for it


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """This gradient will not be applied: free it."""

    worker: int
    seq: int


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """Save the state as it is at this point, after `step`."""

    step: int


Decision: TypeAlias = Apply | Answer | Forget | Cut


class Push(msgspec.Struct, frozen=True):
    """What admission needs to know of a push: everything but the numbers.

    `kind`: a "gradient"; "skip", a turn without one; "pull", a request for values only. `last`: its worker
    brings nothing after this pull.
    """

    worker: int
    seq: int
    version: int
    kind: Literal["gradient", "skip", "pull"] = "gradient"
    weight: float = 1.0
    last: bool = False

    @property
    def part(self) -> Part:
        """This push as a contribution."""
        return Part(self.worker, self.seq, self.weight)
