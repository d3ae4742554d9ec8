"""A message of every kind, as it may travel."""

from __future__ import annotations

import msgspec

from argosy.modes import Async, Ring, Sync
from argosy.protocol.asking import (
    JobStatus,
    Stacks,
    StacksOffer,
    StacksRequest,
    StatusReport,
    StatusRequest,
    WaitingReport,
    WaitingRequest,
    WorkerStatus,
)
from argosy.protocol.decisions import Answer, Apply, Cut, Forget, Part
from argosy.protocol.fields import Group
from argosy.protocol.header import Header, LogEntry, LogState
from argosy.protocol.joining import (
    Admitted,
    Describe,
    Described,
    Fail,
    GradientMemory,
    GradientMemorySeen,
    Hello,
    JobOver,
    Known,
    Leave,
    Left,
    OptimizerSpec,
    Refused,
    Register,
    Registered,
    SlotValues,
    Welcome,
)
from argosy.protocol.layout import Block, Layout, ParameterSpec, Piece
from argosy.protocol.remote_work import (
    Attach,
    Attached,
    CutOff,
    Detach,
    Fault,
    Item,
    Packing,
    Parcel,
    Reply,
    TaskGone,
    Work,
)
from argosy.protocol.saving import (
    DirectoryOpened,
    OpenDirectory,
    OwnState,
    ResumePoint,
    ResumeRequest,
    ShardFile,
    ShardSaved,
)
from argosy.protocol.training import (
    BlockAhead,
    Gathered,
    GatherRequest,
    HeldNotice,
    NormReport,
    Orders,
    PushAnswer,
    PushRequest,
    Scale,
    StopRequest,
)

RAW = msgspec.Raw(msgspec.msgpack.encode({"loss": 0.5, "names": ["a", None]}))
LAYOUT = Layout(
    (ParameterSpec("weight", (3, 4), "bfloat16", 1), ParameterSpec("scalar", (), "float32")),
    (Block(0, 1, "bfloat16", 12), Block(1, 0, "float32", 1)),
    (Piece(0, 0, 12, 0, 0), Piece(1, 0, 1, 1, 0)),
)
WORKER = WorkerStatus("a", "in the job", 4, 3, 2, 1, 5, 6, 0.25, {"loss": 0.5})
GROUPS: tuple[Group, ...] = ({"lr": 0.1, "betas": (0.9, 0.99), "amsgrad": False, "foreach": None}, {})
EXAMPLES: list[Header] = [
    Hello("/job:worker/task:0", 2, 3, life="a"),
    Welcome(5 << 40),
    Refused("model", "model", "this", "that", "do so"),
    StatusRequest(),
    StatusRequest(stacks=True),
    StacksOffer("/job:worker/task:1", "life"),
    StacksRequest(),
    Stacks("main thread:\n"),
    StatusReport(("one", "zwölf")),
    StatusReport((), JobStatus(7, 1.5, "Sync()", 9, 1, (WORKER, WorkerStatus("b", "gone")), ("b",), 0.5)),
    Describe(LAYOUT.parameters, Sync(aggregate=2, late="fold")),
    Describe((), Async(max_staleness=0)),
    Described(LAYOUT),
    OpenDirectory("runs/mnist", 5),
    DirectoryOpened("runs/mnist/step-3", 3, ("damaged",)),
    ResumeRequest(),
    ResumePoint(3, b"state", GROUPS),
    Register(LAYOUT, OptimizerSpec("Adam", GROUPS), Ring(), 100, 1.5, "mean", ("running_mean",)),
    Register(
        LAYOUT,
        OptimizerSpec("SGD", GROUPS),
        Sync(),
        directory="runs",
        save_every=3,
        restore="runs/step-3",
        average=0.9,
        tied={"b": "a"},
    ),
    Registered(),
    GradientMemory(),
    BlockAhead(7, 2),
    GradientMemorySeen(),
    SlotValues("exp_avg", (((0, 3, 5.0), (3, 4, 0.0)), ())),
    PushRequest(5, 3, "gradient", 32.0, (1, 2), GROUPS, ("running_mean",)),
    PushRequest(2**62, 0, "pull", numbers={"loss": 0.5}),
    PushRequest(5, 3, wishes=("save", "stop", "average", "slots")),
    OwnState(b"state", 7),
    PushAnswer(5, "dropped", 9, 4, True, ("running_mean",)),
    WaitingRequest(5),
    WaitingReport(("/job:worker/task:1 at a:1",), 12.5, False),
    GatherRequest(1, RAW),
    Gathered(1, {0: RAW, 3: RAW}),
    Leave(),
    Fail("because"),
    Left(),
    JobOver("/job:worker/task:1", "because"),
    Known(b"proof"),
    LogState(1, 17, 3),
    LogEntry(1, 1, Admitted(3, "life")),
    LogEntry(1, 2, HeldNotice(3, 5)),
    LogEntry(
        1,
        3,
        Orders((Apply(1, (Part(0, 1, 2.0), Part(1, 1))), Answer(0, 1, "applied", 1, 2, True), Forget(1, 2))),
    ),
    LogEntry(1, 4, Orders((Cut(7), Answer(0, 1, "applied", 1, cut=True)))),
    LogEntry(1, 5, ShardSaved(7, ShardFile("shard-0-of-1.safetensors", 12, "ab"))),
    LogEntry(1, 6, ShardSaved(7, error="No space left on device")),
    LogEntry(1, 7, StopRequest()),
    LogEntry(1, 8, NormReport(3, 0.25)),
    LogEntry(1, 9, Scale(3, 0.5)),
    LogEntry(1, 10, Fail("reason")),
    LogEntry(1, 11, JobOver("/job:ps/task:0", "reason")),
    Attach("a1"),
    Attached("/job:ps/task:0", {"ps": ["localhost:1"]}, ("cpu:0", "gpu:0"), 42),
    Work([0, 3, 7, 1, 2, 0.5, -8, [1, 2]]),
    Reply(4, [["float32", [2], [1]]], Fault("/job:ps/task:0", "aten::mm", 3, "RuntimeError", "no", "trace")),
    Parcel("a1", (Item(3, 1, Packing("float32", (2, 3), (3, 1))), Item(4, 1, None))),
    TaskGone("/job:worker/task:1"),
    CutOff("KeyError: 7"),
    Detach(),
]
