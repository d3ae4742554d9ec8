"""Joining a job and leaving it: who comes, which model is trained, who goes.

A *worker* talks to every server. Server 0, the *coordinator*, talks to the other servers, and they to it.

A worker's request has a `number`, and its answer has the same: one that is sent again, because a connection
broke before the answer came, is done once.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from argosy.modes import BufferRule, Mode
from argosy.protocol.fields import Count, Group, HeaderBase, Index, UpdateCounts
from argosy.protocol.frames import Dtype
from argosy.protocol.layout import Layout, ParameterSpec

PROTOCOL_VERSION = 3
# What is expected of a peer that nobody knows here.
HELLO_FIRST = "hello first"


class Hello(HeaderBase, frozen=True, tag="hello"):
    """Who I am; the first message on a channel."""

    task: str
    servers: Index
    workers: Index
    life: str  # drawn at random when the process began: one process may come over two lanes
    protocol: int = PROTOCOL_VERSION


class Welcome(HeaderBase, frozen=True, tag="welcome"):
    """You are in: count your pushes from `base_seq`. `lane`: a shorter way, if you are on my host."""

    base_seq: Count = 0
    lane: str = ""
    gathers: Count = msgspec.field(default=0, name="meetings")  # how many have taken place


class Refused(HeaderBase, frozen=True, tag="refused"):
    """This cannot work, and why. `kind` is the error that the client raises."""

    kind: Literal["config", "model", "protocol", "lost"]
    field: str
    expected: str
    got: str
    remedy: str = ""


class Known(HeaderBase, frozen=True, tag="known"):
    """To a server's hello: I am the server that you reach, and this proves it. A welcome follows your own
    proof.
    """

    proof: bytes


class Admitted(HeaderBase, frozen=True, tag="admitted"):
    """From the coordinator: this process is now that worker; take no other for it."""

    worker: Index
    life: str


class Describe(HeaderBase, frozen=True, tag="describe"):
    """My parameters are these; what is the layout? Answered when the chief has registered them."""

    parameters: tuple[ParameterSpec, ...]
    mode: Mode
    number: Count = 0


class Described(HeaderBase, frozen=True, tag="described"):
    """The layout. The chief gets an empty one if nothing is registered: it must register."""

    layout: Layout
    number: Count = 0


class OptimizerSpec(HeaderBase, frozen=True):
    """A torch.optim optimizer as data: its class and the hyperparameters of each group."""

    name: str
    groups: tuple[Group, ...]


class Register(HeaderBase, frozen=True, tag="register"):
    """From the chief: the layout, and how to train. Frames: this server's new blocks, then the buffers.

    `directory`: where checkpoints are kept, every `save_every` steps. `restore`: the one to begin from.
    `average`: the decay of moving averages. `tied`: other names of parameters and buffers.
    """

    layout: Layout
    optimizer: OptimizerSpec
    mode: Mode
    last_step: Count | None = None
    clip_norm: float | None = None
    buffer_rule: BufferRule = "chief"
    buffers: tuple[str, ...] = ()
    wire_dtype: Dtype | None = None
    directory: str = ""
    save_every: Annotated[int, msgspec.Meta(ge=1)] | None = None
    restore: str = ""
    average: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    tied: dict[str, str] = msgspec.field(default_factory=dict)
    number: Count = 0


class Registered(HeaderBase, frozen=True, tag="registered"):
    """Done."""

    number: Count = 0


class SlotValues(HeaderBase, frozen=True, tag="given"):
    """From the chief, before it registers: its optimizer has been used before. Frames: the slot of this name
    of each new block of this server, or nothing. `steps`: of each block, its updates so far.
    """

    name: str
    steps: tuple[UpdateCounts, ...]
    number: Count = 0


class GradientMemory(HeaderBase, frozen=True, tag="slots"):
    """My gradients will lie in this memory. Frames: the gradient of each block of this server."""

    number: Count = 0


class GradientMemorySeen(HeaderBase, frozen=True, tag="kept"):
    """I see it."""

    number: Count = 0


class Leave(HeaderBase, frozen=True, tag="leave"):
    """I am done."""


class Left(HeaderBase, frozen=True, tag="left"):
    """The answer to `Leave`."""


class Fail(HeaderBase, frozen=True, tag="fail"):
    """I failed, or I have heard that `task` did: end the job."""

    reason: str
    task: str = ""


class JobOver(HeaderBase, frozen=True, tag="over"):
    """The job has ended; by a failure if `task` is given."""

    task: str = ""
    reason: str = ""


Arriving: TypeAlias = Hello | Welcome | Refused | Known
Registering: TypeAlias = Describe | Described | Register | Registered | SlotValues
Leaving: TypeAlias = Leave | Left | Fail | JobOver
Joining: TypeAlias = Arriving | Registering | GradientMemory | GradientMemorySeen | Leaving
