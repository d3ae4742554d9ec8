"""How replicas work together: frozen descriptions, without behaviour. A mode is validated where it is born.

`update/` holds the state machines that act on these; the wire carries them as data.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from argosy.errors import ConfigError

BufferRule = Literal["chief", "mean"]


class Async(msgspec.Struct, frozen=True, tag="async"):
    """Each gradient is applied when it arrives.

    `max_staleness`: at most so many updates between a replica's pull and the application of its gradient;
    a replica that is too far ahead waits. `None`: no bound.
    """

    max_staleness: int | None = None

    def __post_init__(self) -> None:
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ConfigError("max_staleness", "a number of updates, 0 or more", self.max_staleness)

    def check(self, workers: int) -> None:
        """Nothing here depends on the number of workers."""


class Sync(msgspec.Struct, frozen=True, tag="sync"):
    """A step waits for the gradients, averages them and applies once; replicas go on together.

    `aggregate=k`: go on with the first k (default: one from each worker). `late`: what becomes of a
    gradient that comes after its step: "drop" it, or "fold" it into the next one; either way its worker is
    told. `distinct=False`: any k gradients make a step, also several of one worker, and k may exceed the
    number of workers; `tokens=m` then lets a worker run up to m gradients ahead of the step.
    `weighted`: average by batch size instead of equally.
    """

    aggregate: int | None = None
    late: Literal["drop", "fold"] = "drop"
    distinct: bool = True
    tokens: int | None = None
    weighted: bool = False

    def __post_init__(self) -> None:
        if self.aggregate is not None and self.aggregate < 1:
            raise ConfigError("aggregate", "a number of gradients, 1 or more", self.aggregate)
        if self.late not in ("drop", "fold"):
            raise ConfigError("late", "drop or fold", repr(self.late))
        if self.tokens is not None and self.tokens < 0:
            raise ConfigError("tokens", "a number of gradients, 0 or more", self.tokens)
        if self.tokens and self.distinct:
            raise ConfigError(
                "tokens",
                "0 when each worker counts once a step",
                self.tokens,
                "set distinct=False to let a worker run ahead",
            )

    def check(self, workers: int) -> None:
        """Refuse what cannot work with so many workers."""
        if self.aggregate is None:
            return
        if self.distinct and self.aggregate > workers:
            raise ConfigError(
                "aggregate",
                f"at most the number of workers, {workers}",
                self.aggregate,
                "set tokens (and distinct=False in code) to take several gradients of one worker in a step",
            )
        if self.tokens is not None and not self.distinct and workers * (self.tokens + 1) < self.aggregate:
            least = self.tokens_needed(workers)
            raise ConfigError(
                "tokens",
                f"at least {least}, or {workers} workers never make {self.aggregate} gradients",
                self.tokens,
            )

    def tokens_needed(self, workers: int) -> int:
        """How far a worker must be able to run ahead for a step to fill at all."""
        return max(0, math.ceil((self.aggregate or workers) / max(workers, 1)) - 1)


class Ring(msgspec.Struct, frozen=True, tag="ring"):
    """No servers: the workers average their gradients by all-reduce."""

    def check(self, workers: int) -> None:
        """Any number of workers makes a ring."""


class Local(msgspec.Struct, frozen=True, tag="local"):
    """A cluster of one: plain PyTorch."""

    def check(self, workers: int) -> None:
        """Nothing to refuse."""


Mode = Async | Sync | Ring | Local


def mode_name(mode: Mode) -> str:
    """The word for a mode on the command line and in logs."""
    return type(mode).__name__.lower()
