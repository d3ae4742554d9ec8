"""Random training programs: the same one from the same seed, always.

`features` names what a program must have, such as `{"ring", "skip", "every"}`; everything else is drawn. What
the pages do not say the end of is drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any, get_args

from allowing import SERVERS_RUN, allowed
from programs import Clip, Deed, Feed, Lane, Part, Pass, Phase, Program, Turn, Way

# Every optimizer of torch that takes dense gradients of any shape, with options worth trying.
OPTIMIZERS: dict[str, list[dict[str, Any]]] = {
    "SGD": [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"lr": 0.1, "momentum": 0.5, "dampening": 0.3},
        {"lr": 0.05, "maximize": True},
    ],
    "Adam": [
        {"lr": 0.05},
        {"lr": 0.05, "amsgrad": True, "betas": (0.8, 0.9)},
        {"lr": 0.05, "weight_decay": 0.1},
    ],
    "AdamW": [{"lr": 0.05}, {"lr": 0.05, "weight_decay": 0.2, "amsgrad": True}],
    "Adagrad": [{"lr": 0.1}, {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.1}],
    "RMSprop": [{"lr": 0.02}, {"lr": 0.02, "momentum": 0.5, "alpha": 0.9}],
    "NAdam": [{"lr": 0.05}],
    "RAdam": [{"lr": 0.05}],
    "Adamax": [{"lr": 0.05}],
    "Adadelta": [{"lr": 0.5}],
    "ASGD": [{"lr": 0.05}],
    "Rprop": [{"lr": 0.02}],
}  # fmt: skip
SCHEDULERS = ("step", "exponential", "cosine")
PLACEMENTS = ("argosy.RoundRobin()", "argosy.Split(over=16)", "lambda name: 0")
WAYS: tuple[Way, ...] = get_args(Way)
_WEIGHTS = {"ring": 0.36, "sync": 0.36, "local": 0.1, "async": 0.1, "tokens": 0.08}
_PARTS: dict[Part, float] = dict.fromkeys(get_args(Part), 0.15) | {"linear": 0.8, "branch": 0.35}
_WORDS = """
momentum, dampening, groups, scheduler, own clip, norm clip, scaler, overlap, no overlap, wire, average,
mean buffers, warm, reads, watches, same, saves, resume, last step, every, skip, undo, inf, add, none,
discard, stale, uneven, unfinished, weighted, weights, zero weights, placement, many servers, queue, memory,
network, feed
"""
FEATURES = frozenset({*WAYS, *get_args(Part), *OPTIMIZERS, *_WORDS.replace("\n", " ").strip().split(", ")})


class _Draw:
    """Draws by chance, or as a feature says."""

    def __init__(self, seed: int, features: Collection[str]) -> None:
        if unknown := set(features) - FEATURES:
            raise ValueError(f"features: expected some of {sorted(FEATURES)}, got {sorted(unknown)}")
        self.random = random.Random(f"differential/{seed}")
        self.features = frozenset(features)

    def wants(self, feature: str, chance: float) -> bool:
        return self.random.random() < chance or feature in self.features

    def one_of(self, names: Collection[str]) -> list[str]:
        """Those that are asked for."""
        return [name for name in names if name in self.features]


def generate(seed: int, features: Collection[str] = ()) -> Program:
    """The program of this seed."""
    draw = _Draw(seed, features)
    while True:
        program = _program(seed, draw)
        if allowed(program):
            return program


def _program(seed: int, draw: _Draw) -> Program:
    ways = _ways(draw)
    parts: list[Part] = [part for part, chance in _PARTS.items() if draw.wants(part, chance)]
    if draw.wants("feed", 0.04):
        return _fed(seed, draw, ways)
    optimizer, options = _optimizer(draw, ways, parts)
    shape = _Shape(draw, ways)
    phases = tuple(shape.phase(way) for way in ways)
    if len(ways) == 2 and draw.wants("same", 0.4) and len(phases[0].turns) > 1:
        whole = phases[0].turns
        at = draw.random.randrange(1, len(whole))
        phases = (replace(phases[0], turns=whole[:at]), replace(phases[0], turns=whole[at:]))
    turns = sum(len(phase.turns) for phase in phases)
    resumes = len(phases) > 1
    scaler = shape.scaler
    clip: Clip = "own" if draw.wants("own clip", 0.12) else "norm" if draw.wants("norm clip", 0.12) else None
    overlap = True if draw.wants("overlap", 0.25) else False if draw.wants("no overlap", 0.25) else None
    wires = ("bfloat16", "float16")
    return Program(
        seed=seed,
        phases=phases,
        parts=tuple(parts),
        optimizer=optimizer,
        options=tuple(options.items()),
        groups=2 if draw.wants("groups", 0.25) else 1,
        scheduler=draw.random.choice(SCHEDULERS) if draw.wants("scheduler", 0.25) else None,
        clip=clip if clip != "own" or shape.every == 1 else None,
        scaler=scaler,
        overlap=overlap,
        wire=draw.random.choice(wires) if draw.wants("wire", 0.12) else None,
        average=0.9 if draw.wants("average", 0.2) else None,
        buffers="mean" if draw.wants("mean buffers", 0.4) else "chief",
        late_at=draw.random.randrange(turns) if "late" in parts else None,
        thaw_at=draw.random.randrange(turns) if "frozen" in parts else None,
        freeze_at=draw.random.randrange(1, turns + 1) if "freezes" in parts else None,
        warm=draw.wants("warm", 0.1),
        reads=draw.wants("reads", 0.4),
        watches=draw.wants("watches", 0.4),
        saves=resumes or draw.wants("saves", 0.1),
        last_step=draw.random.randint(1, turns) if draw.wants("last step", 0.1) and not resumes else None,
    )  # fmt: skip


def _ways(draw: _Draw) -> list[Way]:
    """The mode of each phase."""
    asked = draw.one_of(WAYS)
    names, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    drawn = draw.random.choices(names, weights, k=3)
    resumes = draw.wants("resume", 0.15) or len(asked) > 1
    count = draw.random.choice((2, 2, 3)) if resumes else 1
    chosen: list[Any] = [*asked, *drawn][:count]
    if resumes:
        draw.random.shuffle(chosen)
    return chosen


def _optimizer(draw: _Draw, ways: list[Way], parts: list[Part]) -> tuple[str, dict[str, Any]]:
    known = [name for name in OPTIMIZERS if name in SERVERS_RUN or set(ways) <= {"local", "ring"}]
    name = draw.random.choice(draw.one_of(known) or [*known, "SGD", "SGD"])
    options = draw.random.choice(OPTIMIZERS[name])
    if asked := draw.one_of(("momentum", "dampening")):
        name, options = "SGD", OPTIMIZERS["SGD"][1 if asked == ["momentum"] else 3]
    if ("async" in ways or "sparse" in parts) and draw.random.random() < 0.8:
        name, options = "SGD", {"lr": 0.1}
    return name, options


class _Shape:
    """How many workers, turns and passes; who does what in each."""

    def __init__(self, draw: _Draw, ways: list[Way]) -> None:
        self.draw = draw
        self.scaler = draw.wants("scaler", 0.15) or "inf" in draw.features
        self.every = draw.random.choice((2, 2, 3)) if draw.wants("every", 0.25) else 1
        self.adds = draw.wants("add", 0.2) and self.every > 1
        # How often a worker does something else than a plain step.
        self.chances = {
            act: 0.35 if act in draw.features else draw.random.choice((0.0, 0.0, 0.0, 0.0, 0.15))
            for act in ("skip", "undo", "none", "inf")
        }
        self.discards = 0.4 if draw.wants("discard", 0.08) else 0.0
        self.stale = 0.6 if draw.wants("stale", 0.1) else 0.0
        self.branch = draw.random.choice((0.0, 0.3, 0.5))
        self.one_every = draw.random.random() < 0.6

    def phase(self, way: Way) -> Phase:
        draw = self.draw
        workers = 1 if way == "local" else draw.random.choice((1, 2, 2, 2, 3))
        if workers == 1 and way not in ("local", "tokens") and draw.features:
            workers = 2
        count = draw.random.randint(2, 5)
        served = way in ("sync", "tokens", "async")
        weighted = way in ("sync", "tokens") and draw.wants("weighted", 0.2)
        turns = [self._turn(way, workers, weighted) for _ in range(count)]
        if draw.wants("uneven", 0.12) and workers > 1 and count > 2:
            turns = self._uneven(turns, workers)
        if draw.wants("unfinished", 0.08) and (turns[-1].every > 1 or way == "tokens") and not self.adds:
            turns[-1] = self._unfinished(turns[-1])
        servers = draw.random.choice((1, 2, 2, 3)) if served else 0
        return Phase(
            way,
            tuple(turns),
            3 if served and "many servers" in draw.features else servers,
            self._lane() if served else "memory",
            weighted,
            draw.random.choice(PLACEMENTS) if served and draw.wants("placement", 0.3) else None,
        )

    def _lane(self) -> Any:
        drawn = self.draw.random.choice(("queue", "memory", "memory", "network", "network"))
        asked = self.draw.one_of(("queue", "memory", "network"))
        return asked[0] if asked else drawn

    def _turn(self, way: Way, workers: int, weighted: bool) -> Turn:
        every = self.every if self.one_every else self.draw.random.randint(1, self.every)
        if way == "tokens":
            return Turn(tuple((self._pass(weighted), self._pass(weighted)) for _ in range(workers)))
        deeds = [self._deed(every, weighted) for _ in range(workers)]
        if way == "ring":  # what one worker does to the mean, all must
            act = deeds[0][-1].act
            if act == "undo" or any(deed[-1].act == "undo" for deed in deeds):
                alike = self.draw.random.random() < 0.7
                deeds = [self._with_last(deed, "undo") for deed in deeds] if alike else deeds
            if self.draw.random.random() < 0.7:
                deeds = self._broken_off(deeds)
            if self.draw.random.random() < 0.7:
                discard = deeds[0][0].discard
                deeds = [(replace(deed[0], discard=discard), *deed[1:]) for deed in deeds]
        return Turn(tuple(deeds), every)

    @staticmethod
    def _broken_off(deeds: list[Deed]) -> list[Deed]:
        """The first infinity ends the turn of all."""
        ends = [len(deed) for deed in deeds if deed[-1].act == "inf"]
        return [deed[: min(ends)] for deed in deeds] if ends else deeds

    @staticmethod
    def _with_last(deed: Deed, act: Any) -> Deed:
        return (*deed[:-1], replace(deed[-1], act=act, stale=False))

    def _deed(self, every: int, weighted: bool) -> Deed:
        rng = self.draw.random
        passes = [self._pass(weighted) for _ in range(every)]
        if self.adds and every > 1:
            return (*(replace(each, act="add") for each in passes[:-1]), passes[-1])
        if rng.random() < self.discards:
            passes[0] = replace(passes[0], discard=True)
        for act, chance in self.chances.items():
            if rng.random() >= chance or (act == "inf" and not self.scaler):
                continue
            if act == "none":
                return tuple(replace(each, act="none", discard=False) for each in passes)
            stale = act == "skip" and rng.random() < self.stale
            before = passes[: rng.randrange(every)] if act != "undo" else passes[:-1]
            discard = passes[len(before)].discard and act != "skip"
            return (*before, replace(passes[len(before)], act=act, stale=stale, discard=discard))  # type: ignore[arg-type]
        return tuple(passes)

    def _pass(self, weighted: bool) -> Pass:
        rng = self.draw.random
        size = rng.randint(2, 4)
        weight = rng.choice((0.5, 1.0, 3.0, 0.0)) if weighted and self.draw.wants("weights", 0.2) else None
        if weighted and "zero weights" in self.draw.features:
            weight = rng.choice((0.0, 0.0, 1.0))
        return Pass("step", size, branch=rng.random() >= self.branch, weight=weight)

    def _uneven(self, turns: list[Turn], workers: int) -> list[Turn]:
        """Some worker's data ends before the others'."""
        rng = self.draw.random
        gone = rng.randrange(workers)
        left = rng.randint(1, len(turns) - 1)
        return [
            replace(turn, deeds=tuple(() if w == gone else deed for w, deed in enumerate(turn.deeds)))
            if number >= left
            else turn
            for number, turn in enumerate(turns)
        ]

    def _unfinished(self, turn: Turn) -> Turn:
        """The data of some ends in the middle of an accumulation."""
        rng = self.draw.random
        cut = [deed[:-1] if len(deed) > 1 and rng.random() < 0.6 else deed for deed in turn.deeds]
        return replace(turn, deeds=tuple(cut))


def _fed(seed: int, draw: _Draw, ways: list[Way]) -> Program:
    """A program that takes its data from `replica.loader`, in several calls of `batches`."""
    rng = draw.random
    ways = [way if way in ("local", "ring", "sync") else "sync" for way in ways]
    counts = [1 if way == "local" else rng.choice((1, 2, 2, 3)) for way in ways]
    batch = rng.choice((1, 2))
    epochs = rng.choice((2, 3))
    calls = rng.choice(((epochs,), (1,) * epochs, (1, epochs - 1)))
    product = counts[0] * counts[-1]
    rows = batch * product * rng.choice((1, 2))
    phases = []
    total = rows * epochs // batch  # batches of all workers together
    for number, (way, count) in enumerate(zip(ways, counts, strict=True)):
        last = number == len(ways) - 1
        done = total if last else product * rng.randrange(1, max(2, total // product))
        if done % count or not done or done >= total * (2 if last else 1):
            return _fed(seed, draw, ways)
        total -= done
        turns = (Turn(((Pass(),),) * count),) * (done // count)
        lane: Lane = rng.choice(("network", "memory")) if way == "sync" else "memory"
        phases.append(Phase(way, turns, rng.choice((1, 2)) if way == "sync" else 0, lane))
    return Program(
        seed=seed,
        phases=tuple(phases),
        options=(("lr", 0.1), ("momentum", 0.5)),
        saves=len(phases) > 1,
        reads=rng.random() < 0.5,
        feed=Feed(rows, batch, calls),
    )
