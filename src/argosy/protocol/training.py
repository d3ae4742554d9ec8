"""Training: a worker's pushes and their answers, gathers, and what servers tell each other about a step."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from argosy.protocol.asking import Numbers
from argosy.protocol.decisions import Decision, Status
from argosy.protocol.fields import Count, Group, HeaderBase, Index, UpdateCounts
from argosy.protocol.saving import CarriedState

Wish: TypeAlias = Literal["save", "stop", "average", "slots", "last"]
Wishes: TypeAlias = tuple[Wish, ...]


class PushRequest(HeaderBase, frozen=True, tag="push"):
    """A gradient, a turn without one, or a request for values. Frames: one a block of mine, then buffers.

    `absent`: parameters without a gradient. `groups`: hyperparameters, when they have changed. `shared`:
    the other servers find their share in my gradient memory, and hear of it from the coordinator. `ahead`:
    the places of the blocks that were sent ahead, and have no frame here. `wishes`: "save" the state soon,
    "stop" the job, answer with the "average" or with the optimizer's "slots" in place of the values; "last":
    I bring nothing more. `numbers`: what it logged, rarely, and `logged`: at which step. `batches`: a
    checksum of its first batches, once. `state`: what this turn began from, if another process may have to
    take this worker's place.
    """

    seq: Count
    version: Count
    kind: Literal["gradient", "skip", "pull"] = "gradient"
    weight: Annotated[float, msgspec.Meta(gt=0, lt=1e30)] = 1.0
    absent: tuple[Index, ...] = ()
    groups: tuple[Group, ...] | None = None
    buffers: tuple[str, ...] = ()
    shared: bool = False
    ahead: tuple[Index, ...] = ()
    wishes: Wishes = ()
    numbers: Numbers = msgspec.field(default_factory=dict)
    logged: Count = 0
    batches: Count = 0
    state: CarriedState | None = None


class BlockAhead(HeaderBase, frozen=True, tag="bucket"):
    """A block of a push that is still to come, at this place among the server's blocks. Frames: the block."""

    seq: Count
    place: Index


class PushAnswer(HeaderBase, frozen=True, tag="verdict"):
    """What became of a push. Frames: the values of this server's blocks, then buffers."""

    seq: Count
    status: Status
    step: Count
    staleness: int = 0
    stop: bool = False
    buffers: tuple[str, ...] = ()
    cut: bool = False  # a step has been saved: give me your own state for it
    # If they were asked for: of each block the names of its slots, which are the frames, and its updates.
    slots: tuple[tuple[str, ...], ...] = ()
    steps: tuple[UpdateCounts, ...] = ()


class GatherRequest(HeaderBase, frozen=True, tag="meet"):
    """A small value for everybody, and a request for theirs: the gather of that number."""

    number: Count
    value: msgspec.Raw


class Gathered(HeaderBase, frozen=True, tag="met"):
    """The values of all who took part, by worker."""

    number: Count
    values: dict[int, msgspec.Raw]


# --- between servers --------------------------------------------------------------------------------------
class HeldNotice(HeaderBase, frozen=True, tag="held"):
    """My share of this push is here."""

    worker: Index
    seq: Count


class Orders(HeaderBase, frozen=True, tag="orders"):
    """Carry these out, in this order. `pushes`: of workers whose gradient memory you see, and that came to me
    alone.
    """

    decisions: tuple[Decision, ...]
    pushes: tuple[tuple[Index, PushRequest], ...] = ()


class NormReport(HeaderBase, frozen=True, tag="norm"):
    """The squared norm of my share of a step's mean gradient."""

    step: Count
    square: float


class Scale(HeaderBase, frozen=True, tag="scale"):
    """Multiply the step's gradient by this, and apply it."""

    step: Count
    factor: float


class StopRequest(HeaderBase, frozen=True, tag="stop"):
    """End the job after the next step."""


Training: TypeAlias = PushRequest | BlockAhead | PushAnswer | GatherRequest | Gathered
TrainingOfServers: TypeAlias = HeldNotice | Orders | NormReport | Scale | StopRequest
