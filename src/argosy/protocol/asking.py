"""Asking a server: how the job stands, and which tasks a worker is waiting for.

Counters only grow, and carry the time at which they were read on the coordinator's own clock: two answers
give every speed.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from argosy.protocol.fields import Count, HeaderBase

# Numbers that a worker has logged, by name. A few, and short: they ride with a push.
MOST_NUMBERS = 16
LONGEST_NAME = 64
LONGEST_STACKS = 50_000
# Changes that the coordinator remembers: far more than happen between two questions.
MOST_CHANGES = 200
Numbers: TypeAlias = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)], float], msgspec.Meta(max_length=MOST_NUMBERS)
]

ChangeKind: TypeAlias = Literal["joined", "lost", "restarted", "left"]


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A task came or went, at a step, at a time by the coordinator's clock. `number`: all are counted."""

    number: int
    kind: ChangeKind
    task: str
    step: int
    time: float


class WorkerStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker: where it stands, and what became of its gradients.

    `applied` counts gradients that are in the parameters; `folded` ones came late and are among them.
    `staleness`: of the latest; `total_staleness`: of all together. `heard`: seconds since its latest message,
    None if there was none. `numbers`: what it logged last, and `logged`: at which step.
    """

    task: str
    presence: str
    applied: int = 0
    dropped: int = 0
    folded: int = 0
    skipped: int = 0
    staleness: int = 0
    total_staleness: int = 0
    heard: float | None = None
    numbers: Numbers = {}
    logged: int = 0

    @property
    def mean_staleness(self) -> float:
        """Of all its gradients so far."""
        return self.total_staleness / self.applied if self.applied else 0.0


class JobStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole job. `queue`: gradients that are held for a step to come. `clock`: when this was read.

    `waiting`: those without whom nothing goes on; `waited`: for how many seconds. `changes`: the latest,
    in order; each answer tells of them again.
    """

    step: int
    clock: float
    mode: str = ""
    last_step: int | None = None
    queue: int = 0
    workers: tuple[WorkerStatus, ...] = ()
    waiting: tuple[str, ...] = ()
    waited: float = 0.0
    changes: Annotated[tuple[Change, ...], msgspec.Meta(max_length=MOST_CHANGES)] = ()


class StatusRequest(HeaderBase, frozen=True, tag="status?"):
    """How does the job stand? Needs no hello. `stacks`: with the Python stacks of those waited for."""

    stacks: bool = False


class StatusReport(HeaderBase, frozen=True, tag="status"):
    """Lines for a person; and from the coordinator, all that it counts."""

    lines: tuple[str, ...]
    job: JobStatus | None = None


class WaitingRequest(HeaderBase, frozen=True, tag="ask"):
    """Which tasks are we waiting for? `seq`: the push that I have no answer to. `anew`: my connection was
    made anew, so that an answer may have been lost with the old one.
    """

    seq: Count = 0
    anew: bool = False


class WaitingReport(HeaderBase, frozen=True, tag="waiting"):
    """For these, so long. `holds`: whether this server has the push that was asked about."""

    tasks: tuple[str, ...]
    seconds: float
    holds: bool = True


class StacksOffer(HeaderBase, frozen=True, tag="stacks!"):
    """Over this connection the worker of that life says what it is doing, whatever its script computes."""

    task: str
    life: str


class StacksRequest(HeaderBase, frozen=True, tag="stacks?"):
    """What are you doing?"""


class Stacks(HeaderBase, frozen=True, tag="stacks"):
    """The Python stack of every thread of a task."""

    text: Annotated[str, msgspec.Meta(max_length=LONGEST_STACKS)]


Asking: TypeAlias = (
    StatusRequest | StatusReport | WaitingRequest | WaitingReport | StacksOffer | StacksRequest | Stacks
)
