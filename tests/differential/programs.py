"""A training program as plain data: what the model has, how it is optimized, what every worker does in each
turn, and in which mode. Made by `generating`, run by `executing`, computed by `reference`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

# "step": a backward pass, then step(); "skip": no pass, skip(); "undo": a pass, then skip(); "inf": a pass
# whose loss is infinite; "add": a pass inside no_sync(), no step; "none": step() without any gradient.
Act: TypeAlias = Literal["step", "skip", "undo", "inf", "add", "none"]
Way: TypeAlias = Literal["local", "ring", "sync", "tokens", "async"]
Lane: TypeAlias = Literal["queue", "memory", "network"]
Clip: TypeAlias = Literal["own", "norm"] | None  # clip_grad_norm_ before step(), or distribute(clip_norm=)
Part: TypeAlias = Literal[
    "linear", "tied", "scalar", "empty", "unused", "branch", "sparse", "short", "single", "strided",
    "frozen", "freezes", "constant", "late", "norm", "normed", "count", "flag",
]  # fmt: skip
SERVED = frozenset({"sync", "tokens", "async"})
MOVING = frozenset({"norm", "normed", "count", "flag"})  # parts with buffers that a forward pass changes


@dataclass(frozen=True)
class Pass:
    """One batch of one worker. `discard`: another pass before it is thrown away by zero_grad().

    `branch`: whether the loss uses the part of that name. `stale`: zero_grad() is not called before.
    """

    act: Act = "step"
    size: int = 2
    branch: bool = True
    discard: bool = False
    stale: bool = False
    weight: float | None = None


Deed: TypeAlias = tuple[Pass, ...]  # what a worker does in a turn; nothing: its data has ended


@dataclass(frozen=True)
class Turn:
    """One synchronous step: what each worker does, with `step(every=...)`."""

    deeds: tuple[Deed, ...]
    every: int = 1


@dataclass(frozen=True)
class Phase:
    """One run of the program; the next one goes on from its last checkpoint."""

    way: Way
    turns: tuple[Turn, ...]
    servers: int = 0
    lane: Lane = "memory"
    weighted: bool = False
    placement: str | None = None

    @property
    def workers(self) -> int:
        return len(self.turns[0].deeds)

    @property
    def served(self) -> bool:
        return self.way in SERVED

    @property
    def far(self) -> bool:
        """Whether workers reach the servers as if these were on other hosts."""
        return self.served and self.lane != "memory"


@dataclass(frozen=True)
class Feed:
    """Data from `replica.loader`: so many rows in batches, in calls of batches() with so many epochs."""

    rows: int
    batch: int
    calls: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """Everything. `late_at`, `thaw_at`, `freeze_at`: the turn at which a part joins, thaws or freezes.

    `warm`: the optimizer has been stepped before the session. `reads`: its state is compared as well.
    `watches`: the model is looked at after every turn, and not only at the end.
    """

    seed: int
    phases: tuple[Phase, ...]
    parts: tuple[Part, ...] = ("linear",)
    optimizer: str = "SGD"
    options: tuple[tuple[str, object], ...] = (("lr", 0.1),)
    groups: int = 1
    scheduler: str | None = None
    clip: Clip = None
    scaler: bool = False
    overlap: bool | None = None
    wire: str | None = None
    average: float | None = None
    buffers: Literal["chief", "mean"] = "chief"
    late_at: int | None = None
    thaw_at: int | None = None
    freeze_at: int | None = None
    warm: bool = False
    reads: bool = False
    watches: bool = False
    saves: bool = False
    last_step: int | None = None
    feed: Feed | None = None

    @property
    def turns(self) -> list[tuple[Phase, int, Turn]]:
        """Every turn with its number; numbers go on from phase to phase."""
        pairs = [(phase, turn) for phase in self.phases for turn in phase.turns]
        return [(phase, number, turn) for number, (phase, turn) in enumerate(pairs)]

    @property
    def passes(self) -> Iterator[Pass]:
        return (each for _, _, turn in self.turns for deed in turn.deeds for each in deed)

    @property
    def linear(self) -> bool:
        """Whether gradients must not depend on parameters: the order of updates is then of no account."""
        return any(phase.way == "async" and phase.workers > 1 for phase in self.phases)

    @property
    def averages_in_backward(self) -> bool:
        """Whether a backward pass in the ring makes the mean."""
        return self.overlap is not False

    def breaks_off(self, phase: Phase, turn: Turn) -> bool:
        """Whether an infinity is in the mean: the scalers of all find it, in whichever pass it was made."""
        mean = phase.way == "ring" and self.averages_in_backward
        return mean and any(deed[-1].act == "inf" for deed in turn.deeds if deed)

    def first_turn(self, phase: int) -> int:
        return sum(len(each.turns) for each in self.phases[:phase])


def unbroken(program: Program) -> Program | None:
    """The same training in one go, if the pages promise the same bits for it."""
    first = program.phases[0]
    shapes = {(replace(phase, turns=first.turns), phase.workers) for phase in program.phases}
    if len(program.phases) == 1 or len(shapes) > 1 or program.wire is not None or program.linear:
        return None
    turns = tuple(turn for phase in program.phases for turn in phase.turns)
    # What each worker brought last of its buffers is not saved: it matters to who skips.
    brings = program.buffers == "mean" and MOVING & set(program.parts)
    if brings and any(each.act != "step" for each in program.passes):
        return None
    return replace(program, phases=(replace(first, turns=turns),))


def with_turns(program: Program, number: int, turns: tuple[Turn, ...]) -> Program:
    """The program with other turns in one of its phases."""
    phases = list(program.phases)
    phases[number] = replace(phases[number], turns=turns)
    return replace(program, phases=tuple(phases))
