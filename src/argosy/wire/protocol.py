"""Every header that travels, as types. What msgspec cannot decode into one of these is not a message.

Who speaks: a *worker* to every server; server 0, the *coordinator*, to the other servers, and they to it.
Frames are named in the comment of each header that has some.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from argosy.checkpoint.index import ShardFile
from argosy.modes import BufferRule, Mode
from argosy.store.layout import Layout, ParameterSpec
from argosy.update.decisions import Decision, Status
from argosy.wire.frames import Dtype
from argosy.wire.remote_headers import Attach, Attached, Bereft, CutOff, Detach, Parcel, Reply, Work
from argosy.wire.status import JobStatus, Numbers

PROTOCOL_VERSION = 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Index = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
Hyperparameter: TypeAlias = float | int | bool | str | tuple[float, ...] | None
Group: TypeAlias = dict[str, Hyperparameter]


class _Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The base of all headers: immutable, and small on the wire."""


# --- from anyone ------------------------------------------------------------------------------------------
class Hello(_Header, frozen=True, tag="hello"):
    """Who I am; the first message on a channel."""

    task: str
    servers: Index
    workers: Index
    life: str  # drawn by lot when the process began: one process may come over two lanes
    protocol: int = PROTOCOL_VERSION


class Welcome(_Header, frozen=True, tag="welcome"):
    """You are in: count your pushes from `base_seq`. `lane`: a shorter way, if you are on my host."""

    base_seq: Count = 0
    lane: str = ""
    meetings: Count = 0  # how many have taken place


class Refused(_Header, frozen=True, tag="refused"):
    """This cannot work, and why. `kind` is the error that the client raises."""

    kind: Literal["config", "model", "protocol"]
    field: str
    expected: str
    got: str
    remedy: str = ""


class StatusRequest(_Header, frozen=True, tag="status?"):
    """How does the job stand? Needs no hello."""


class StatusReport(_Header, frozen=True, tag="status"):
    """Lines for a person; and from the coordinator, all that it counts."""

    lines: tuple[str, ...]
    job: JobStatus | None = None


# --- from a worker ----------------------------------------------------------------------------------------
class Describe(_Header, frozen=True, tag="describe"):
    """My parameters are these; what is the layout? Answered when the chief has registered them."""

    parameters: tuple[ParameterSpec, ...]
    mode: Mode


class Described(_Header, frozen=True, tag="described"):
    """The layout; empty for the chief if nothing is registered: it is its turn."""

    layout: Layout


class OptimizerSpec(_Header, frozen=True):
    """A torch.optim optimizer as data: its class and the hyperparameters of each group."""

    name: str
    groups: tuple[Group, ...]


class Open(_Header, frozen=True, tag="open"):
    """From the chief, before it registers: checkpoints are kept in this directory, the newest `keep`."""

    directory: str
    keep: Annotated[int, msgspec.Meta(ge=1)]


class Opened(_Header, frozen=True, tag="opened"):
    """It is mine. `checkpoint`: the one to go on from. `again`: the job runs already. `notes`: for people."""

    checkpoint: str = ""
    step: Count = 0
    notes: tuple[str, ...] = ()
    again: bool = False


class Resume(_Header, frozen=True, tag="resume?"):
    """From where do I go on?"""


class Resumed(_Header, frozen=True, tag="resume"):
    """From this step, with this state of your own, and these hyperparameters if they were saved."""

    step: Count
    state: bytes = b""
    groups: tuple[Group, ...] | None = None


class Register(_Header, frozen=True, tag="register"):
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
    tied: dict[str, str] = {}


class Registered(_Header, frozen=True, tag="registered"):
    """Done."""


class Given(_Header, frozen=True, tag="given"):
    """From the chief, before it registers: an optimizer does not begin anew. Frames: what it has kept under
    this name of each new block of this server, or nothing. `steps`: of each block, its updates so far.
    """

    name: str
    steps: tuple[tuple[tuple[Count, Count, float], ...], ...]


class Slots(_Header, frozen=True, tag="slots"):
    """My gradients will lie in this memory. Frames: the slot of each block of this server."""


class SlotsKept(_Header, frozen=True, tag="kept"):
    """I see it."""


Wish: TypeAlias = Literal["save", "stop", "average", "slots"]
Wishes: TypeAlias = tuple[Wish, ...]


class PushRequest(_Header, frozen=True, tag="push"):
    """A gradient, a turn without one, or a wish for values. Frames: one a block of mine, then buffers.

    `absent`: parameters without a gradient. `groups`: hyperparameters, when they have changed. `shared`:
    the other servers find their share in my slots, and hear of it from the coordinator. `ahead`: the places
    of the blocks that were sent ahead, and have no frame here. `wishes`: "save" the state soon, "stop" the
    job, answer with the "average" or with the optimizer's "slots" in place of the values. `numbers`: what it
    logged, rarely. `batches`: a checksum of its first batches, once.
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
    numbers: Numbers = {}
    batches: Count = 0


class OwnState(_Header, frozen=True, tag="state"):
    """My own state (random generators, position in my data): what I need to go on from here."""

    state: bytes


class Bucket(_Header, frozen=True, tag="bucket"):
    """A block of a push that is still to come, at this place among the server's blocks. Frames: the block."""

    seq: Count
    place: Index


class Verdict(_Header, frozen=True, tag="verdict"):
    """What became of a push. Frames: the values of this server's blocks, then buffers."""

    seq: Count
    status: Status
    step: Count
    staleness: int = 0
    stop: bool = False
    buffers: tuple[str, ...] = ()
    cut: bool = False  # a step has been saved: give me your own state for it
    # If they were wished for: of each block the names of its slots, which are the frames, and its updates so
    # far by stretches of (start, stop, count).
    slots: tuple[tuple[str, ...], ...] = ()
    steps: tuple[tuple[tuple[Count, Count, float], ...], ...] = ()


class Ask(_Header, frozen=True, tag="ask"):
    """For whom are we waiting? `seq`: the push that I have no answer to."""

    seq: Count = 0


class Waiting(_Header, frozen=True, tag="waiting"):
    """For these, so long. `holds`: whether this server has the push that was asked about."""

    tasks: tuple[str, ...]
    seconds: float
    holds: bool = True


class Meet(_Header, frozen=True, tag="meet"):
    """A small value for everybody, and a wish for theirs: the meeting of that number."""

    number: Count
    value: msgspec.Raw


class Met(_Header, frozen=True, tag="met"):
    """The values of all who were there, by worker."""

    number: Count
    values: dict[int, msgspec.Raw]


class Leave(_Header, frozen=True, tag="leave"):
    """I am done."""


class Fail(_Header, frozen=True, tag="fail"):
    """I failed: end the job."""

    reason: str


class Left(_Header, frozen=True, tag="left"):
    """Understood, farewell."""


class JobOver(_Header, frozen=True, tag="over"):
    """The job has ended; by a failure if `task` is given."""

    task: str = ""
    reason: str = ""


# --- between servers --------------------------------------------------------------------------------------
class Admitted(_Header, frozen=True, tag="admitted"):
    """This process is now that worker: take no other for it."""

    worker: Index
    life: str


class HeldNotice(_Header, frozen=True, tag="held"):
    """My share of this push is here."""

    worker: Index
    seq: Count


class Orders(_Header, frozen=True, tag="orders"):
    """Carry these out, in this order. `pushes`: of workers whose slots you see, and that came to me alone."""

    decisions: tuple[Decision, ...]
    pushes: tuple[tuple[Index, PushRequest], ...] = ()


class NormReport(_Header, frozen=True, tag="norm"):
    """The squared norm of my share of a step's mean gradient."""

    step: Count
    square: float


class ShardSaved(_Header, frozen=True, tag="saved"):
    """My file of this cut is on the disk, or could not be written."""

    step: Count
    file: ShardFile | None = None
    error: str = ""


class StopWish(_Header, frozen=True, tag="stop"):
    """End the job after the next step."""


class Scale(_Header, frozen=True, tag="scale"):
    """Multiply the step's gradient by this, and apply it."""

    step: Count
    factor: float


Header: TypeAlias = (
    Hello
    | Welcome
    | Refused
    | StatusRequest
    | StatusReport
    | Describe
    | Described
    | Open
    | Opened
    | Resume
    | Resumed
    | Register
    | Registered
    | Slots
    | SlotsKept
    | Given
    | PushRequest
    | OwnState
    | Bucket
    | Verdict
    | Ask
    | Waiting
    | Meet
    | Met
    | Leave
    | Fail
    | Left
    | JobOver
    | Admitted
    | HeldNotice
    | Orders
    | NormReport
    | ShardSaved
    | StopWish
    | Scale
    | Attach
    | Attached
    | Work
    | Reply
    | Parcel
    | Bereft
    | CutOff
    | Detach
)
