"""Small programs that once went wrong, by situation: what the generator came upon, made small."""

from __future__ import annotations

from programs import Feed, Phase, Program
from remote_programs import Call, RemoteProgram
from turn_text import turns

MOMENTUM = (("lr", 0.1), ("momentum", 0.9))
DAMPENING = (("lr", 0.1), ("momentum", 0.5), ("dampening", 0.3))


def _ring(*texts: str) -> Phase:
    return Phase("ring", turns(*texts))


def _sync(*texts: str, servers: int = 1, far: bool = False, weighted: bool = False) -> Phase:
    return Phase("sync", turns(*texts), servers, "network" if far else "memory", weighted)


def _local(*texts: str) -> Phase:
    return Phase("local", turns(*texts))


FOUND: dict[str, tuple[Program, ...]] = {
    "ring: a skip beside every, a scaler or clipping": (
        Program(0, (_ring("2: step step | skip"),), overlap=False),
        Program(0, (_ring("inf | step"),), scaler=True, overlap=False),
        Program(0, (_ring("inf | step", "step | step"),), scaler=True, overlap=False),
        Program(0, (_ring("step | skip"),), clip="own"),
        Program(0, (_ring("step | skip", "2: step step | skip"),), scaler=True),
    ),
    "ring: an accumulation begins": (
        Program(0, (_ring("2: skip | step skip"),)),
        Program(0, (_ring("2: step step | step skip", "2: step step | step step"),)),
        Program(
            0,
            (_ring("2: step step | step step | step step"), _ring("2: step step | step step | step step")),
            parts=("short", "single"),
            saves=True,
        ),
    ),
    "ring: no gradient beside one that is divided": (
        Program(0, (_ring("2: none none | step step"),)),
        Program(0, (_ring("2: step step | none none", "step | skip", "step | step"),)),
        Program(0, (_ring("step | none", "step | step"),), scaler=True),
    ),
    "ring: an infinity on one worker, among passes": (
        Program(0, (_ring("2: step step | step step", "step | inf", "step | step"),), scaler=True),
        Program(
            0,
            (_ring("3: step step | step inf", "3: inf | step", "3: step step step | step step step"),),
            scaler=True,
        ),
    ),
    "a loss scale grows in the middle of an accumulation": (
        Program(0, (_local("step", "2: step step"),), scaler=True),
        Program(0, (_ring("3: step step step | step step step"),), scaler=True),
        Program(
            0,
            (_ring("3: step step step | step inf", "3: step step step | step step step"),),
            scaler=True,
            overlap=False,
        ),
        Program(0, (_sync("3: step step step | step step step"),), scaler=True),
    ),
    "ring: goes on from loss scales that differ": (
        Program(0, (_sync("inf | step"), _ring("step | step")), scaler=True, saves=True),
        Program(0, (_sync("step | inf"), _ring(*["step | step"] * 3)), scaler=True, saves=True),
        Program(
            0,
            (_ring("step | inf"), _ring("step | step", "step | step")),
            scaler=True,
            saves=True,
            overlap=False,
        ),
    ),
    "ring: passes after a skip": (
        Program(
            0, (_ring("2: step step | step step", "step | skip", "2: step step | step step", "step | step"),)
        ),
    ),
    "the mean of buffers after a worker has left": (
        Program(
            0,
            (Phase("tokens", turns(*["step step | step step"] * 2, "step step | -", "step step | -"), 1),),
            parts=("norm",),
            buffers="mean",
        ),
    ),
    "ring: a skip without zero_grad": (
        Program(0, (_ring("step | step", "step,branch | skip,stale"),), parts=("linear", "branch")),
    ),
    "ring: an optimizer that was stepped before": (
        Program(0, (_ring("step | step"),), options=MOMENTUM, warm=True),
        Program(0, (_ring("step | step"),), optimizer="Adam", options=(("lr", 0.05),), warm=True),
    ),
    "ring: clipping when a group joins": (
        Program(0, (_ring("step | step"),), parts=("linear", "late"), clip="own", late_at=0),
    ),
    "ring: buffers when a group joins": (
        Program(
            0, (_ring("step | step"),), parts=("late", "norm"), overlap=False, buffers="mean", late_at=0
        ),
    ),
    "ring: the mean of buffers beside a skip": (
        Program(0, (_ring("step | step", "skip | step"),), parts=("norm",), buffers="mean"),
    ),
    "ring: the mean of flags": (
        Program(0, (_ring("step | step"),), parts=("linear", "flag"), buffers="mean"),
        Program(0, (_ring("step,discard | step,discard"),), parts=("linear", "flag"), buffers="mean"),
    ),
    "ring: the mean of counters": (
        Program(0, (_ring("step,discard | step"),), parts=("norm",), overlap=False, buffers="mean"),
    ),
    "ring: an empty parameter alone": (Program(0, (_ring("step | step"),), parts=("empty", "single")),),
    "ring: a group joins without a gradient": (
        Program(0, (_ring("none | step", "step | step"),), parts=("linear", "late"), late_at=0),
    ),
    "a group joins on a server that kept nothing": (
        Program(
            0,
            (_sync("step | step | step", servers=3, far=True),),
            parts=("linear", "late"),
            late_at=0,
        ),
    ),
    "ring: nothing to save": (Program(0, (_ring("undo | undo | undo"),), saves=True),),
    "overlap: a gradient that was discarded": (
        Program(0, (_sync(*["step,discard | none"] * 4, far=True),), parts=("scalar",), overlap=True),
    ),
    "momentum of SGD goes on on servers": (
        Program(0, (_ring("step"), _sync("step")), options=MOMENTUM, saves=True),
        Program(0, (_local("step"), _sync("step")), options=MOMENTUM, saves=True),
    ),
    "first momentum after servers": (
        Program(
            0,
            (_sync("step"), _local("step")),
            parts=("linear", "frozen"),
            options=DAMPENING,
            thaw_at=1,
            saves=True,
        ),
    ),
    "resumed on more workers": (
        Program(0, (_ring("step", "step"), _ring(*["step | step"] * 2)), scheduler="step", saves=True),
        Program(0, (_sync("step", "step"), _sync(*["step | step"] * 2)), scheduler="step", saves=True),
        Program(
            0,
            (_sync("step", "step"), _sync("step | step"), _ring("step | step")),
            feed=Feed(6, 1, (1,)),
            saves=True,
        ),
    ),
    "wire_dtype with a scaler or every": (
        Program(0, (_sync("step", far=True),), scaler=True, wire="float16"),
        Program(0, (_sync("3: step step step", far=True),), wire="bfloat16"),
    ),
    "wire_dtype: a mean of two": (
        Program(0, (Phase("tokens", turns("step step"), 1, "network"),), parts=("normed",), wire="float16"),
    ),
    "wire_dtype when a group joins": (
        Program(
            0,
            (Phase("tokens", turns("step step", "step step"), 1, "network"),),
            parts=("linear", "late"),
            wire="float16",
            late_at=1,
        ),
    ),
    "weighted accumulation": (
        Program(0, (_sync("2: step,n4 step | step step", weighted=True),)),
        Program(0, (_sync("2: step step,n4 | step step,n3", weighted=True),)),
    ),
    "a weight of 0": (
        Program(0, (_sync("step,w0.0 | step", weighted=True),)),
        Program(0, (_sync("step,w0.0 | step,w0.0", "step | step", weighted=True),)),
    ),
    "held at the end": (Program(0, (Phase("tokens", turns("step step", "step"), 1),), saves=True),),
    "the chief has not brought its buffers yet": (
        Program(0, (_sync("skip | step", "step | step"),), parts=("norm",), watches=True),
    ),
    "averages on a server that keeps nothing": (
        Program(0, (_sync("step | step", servers=3),), average=0.9),
    ),
    "a group that joins, saved": (
        Program(0, (_local("step"),) * 2, parts=("linear", "late"), late_at=0, saves=True),
        Program(0, (_ring("step | step"),) * 2, parts=("linear", "late"), late_at=0, saves=True),
        Program(0, (_sync("step | step"),) * 2, parts=("linear", "late"), late_at=0, saves=True),
    ),
    "a group that joins, averaged": (
        Program(0, (_local("step"),), parts=("linear", "late"), late_at=0, average=0.9),
        Program(0, (_ring("step | step"),), parts=("linear", "late"), late_at=0, average=0.9),
        Program(0, (_sync("step | step"),), parts=("linear", "late"), late_at=0, average=0.9),
        Program(0, (_local("step"),), parts=("linear", "late"), late_at=0, average=0.9, saves=True),
    ),
    "a skip when a group joins": (
        Program(0, (_sync("step | skip", "step | step"),), parts=("linear", "late"), late_at=0),
        Program(0, (_sync("skip | skip", "step | step"),), parts=("linear", "late"), late_at=0),
        Program(0, (_ring("step | skip", "step | step"),), parts=("linear", "late"), late_at=0),
    ),
    "several calls of batches": (
        Program(0, (_local(*["step"] * 12),), feed=Feed(4, 1, (1, 1, 1))),
        Program(0, (_sync(*["step | step"] * 6),), feed=Feed(4, 1, (1, 2))),
    ),
    "no gradient at all": (
        Program(0, (_local("2: none none"),)),
        Program(0, (_ring("none | none"),), scaler=True),
    ),
    "the state of an empty parameter": (
        Program(0, (_sync("step", servers=3),), parts=("empty", "strided"), options=MOMENTUM, reads=True),
        Program(
            0,
            (_sync("step,branch", servers=3),),
            parts=("linear", "empty", "branch"),
            optimizer="Adagrad",
            reads=True,
        ),
    ),
}  # fmt: skip

_ELSEWHERE = (Call(2),) * 3
REMOTE_FOUND: dict[str, tuple[RemoteProgram, ...]] = {
    "remote: normalised data": (RemoteProgram(0, (Call(),), parts=("norm",)),),
    "remote: statistics elsewhere": (
        RemoteProgram(0, (Call(),), parts=("normed",)),
        RemoteProgram(0, (Call(),) * 8, parts=("normed",), captured=True),
    ),
    "remote: an error in a captured step": (
        RemoteProgram(0, (Call(), Call(fails=True)) * 6, captured=True, counts=True),
    ),
    "remote: gradients of an earlier recording": (
        RemoteProgram(0, ((Call(),) * 3 + _ELSEWHERE + (Call(),)), captured=True, grads=True),
        RemoteProgram(
            0,
            (*(Call(branch=False),) * 2, Call(), Call(branch=False)),
            parts=("linear", "branch"),
            captured=True,
            grads=True,
        ),
    ),
}
