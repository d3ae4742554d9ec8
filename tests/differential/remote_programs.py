"""Random programs of one client that uses the devices of other tasks, captured or not: plain data."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, replace

from programs import Part

TASKS = ("/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1")
_PARTS: dict[Part, float] = {
    "linear": 0.8,
    "tied": 0.25,
    "scalar": 0.25,
    "unused": 0.2,
    "branch": 0.35,
    "single": 0.2,
    "strided": 0.2,
    "norm": 0.15,
    "normed": 0.15,
    "count": 0.15,
}
_OPTIMIZERS = ("SGD(model.parameters(), lr=0.1)", "SGD(model.parameters(), lr=0.1, momentum=0.9)",
               "Adam(model.parameters(), lr=0.05, fused=True)")  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One call of the step. `factor`: a number, so another one is another recording. `fails`: an operation of
    it has an error. `waits`: its loss is asked for at once."""

    factor: int = 1
    branch: bool = True
    fails: bool = False
    waits: bool = True


@dataclass(frozen=True)
class RemoteProgram:
    """Parameters live at `home`, forward and backward run at `away`, by numbers of tasks.

    `grads`: gradients are compared after each call. `counts`: a call sends a counter to `away`, and counts.
    """

    seed: int
    calls: tuple[Call, ...]
    parts: tuple[Part, ...] = ("linear",)
    optimizer: str = _OPTIMIZERS[0]
    home: int = 0
    away: int = 1
    captured: bool = False
    grads: bool = False
    counts: bool = False
    clips: bool = False

    @property
    def linear(self) -> bool:
        return False


REMOTE_FEATURES = frozenset({*_PARTS, "captured", "grads", "counts", "clips", "fails", "factors", "remote"})


def generate_remote(seed: int, features: Collection[str] = ()) -> RemoteProgram:
    """The program of this seed; `features` are as for `generating.generate`."""
    rng = random.Random(f"remote/{seed}")
    while True:
        program = _draw(seed, rng, frozenset(features))
        if allowed_remote(program):
            return program


def _draw(seed: int, rng: random.Random, features: frozenset[str]) -> RemoteProgram:
    def wants(feature: str, chance: float) -> bool:
        return rng.random() < chance or feature in features

    parts = tuple(part for part, chance in _PARTS.items() if wants(part, chance))
    counts = wants("counts", 0.2) or "fails" in features
    factors = wants("factors", 0.4)
    branches = rng.choice((0.0, 0.3)) if "branch" in parts else 0.0
    fails = 0.3 if counts and wants("fails", 0.3) else 0.0
    waits = rng.choice((1.0, 0.5, 0.2))
    calls = []
    factor, branch = 1, True
    for _ in range(rng.randint(3, 12)):
        if rng.random() < 0.3:  # a few calls of each kind: the third is the first that is played again
            factor = rng.choice((1, 2)) if factors else 1
            branch = rng.random() >= branches
        calls.append(Call(factor, branch, rng.random() < fails, rng.random() < waits))
    home, away = rng.choice(((0, 1), (0, 1), (1, 2), (2, 1), (1, 1)))
    return RemoteProgram(
        seed=seed,
        calls=tuple(calls),
        parts=parts,
        optimizer=rng.choice(_OPTIMIZERS),
        home=home,
        away=away,
        captured=wants("captured", 0.6),
        grads=wants("grads", 0.5),
        counts=counts,
        clips=wants("clips", 0.2),
    )


def allowed_remote(program: RemoteProgram) -> bool:
    """Whether it means something."""
    trains = {"linear", "tied", "scalar", "single", "strided", "norm", "normed"} & set(program.parts)
    return bool(trains and program.calls) and not (
        any(call.fails for call in program.calls) and not program.counts
    )


def smaller_remote(program: RemoteProgram) -> Iterator[RemoteProgram]:
    """Programs with one thing less."""
    return (each for each in _candidates(program) if each != program and allowed_remote(each))


def _candidates(program: RemoteProgram) -> Iterator[RemoteProgram]:
    calls = program.calls
    for at in range(len(calls)):
        yield replace(program, calls=calls[:at] + calls[at + 1 :])
    for part in program.parts:
        yield replace(program, parts=tuple(each for each in program.parts if each != part))
    plain = RemoteProgram(program.seed, calls)
    for field in fields(RemoteProgram):
        if field.name not in ("seed", "calls", "parts"):
            yield replace(program, **{field.name: getattr(plain, field.name)})
    for at, call in enumerate(calls):
        for field in fields(Call):
            other = replace(call, **{field.name: getattr(Call(), field.name)})
            yield replace(program, calls=(*calls[:at], other, *calls[at + 1 :]))
