"""Makes a failing program smaller: drops one thing after the other as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import TypeVar

from allowing import allowed
from programs import Deed, Pass, Phase, Program, Turn, with_turns

P = TypeVar("P")


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest program on the way down that still fails; `program` itself fails."""
    return shrink_by(program, smaller, fails)


def shrink_by(program: P, steps: Callable[[P], Iterator[P]], fails: Callable[[P], bool]) -> P:
    """The same for programs of any kind. What was tried once is not tried again."""
    tried = {repr(program)}
    while True:
        for candidate in steps(program):
            if repr(candidate) not in tried:
                tried.add(repr(candidate))
                if fails(candidate):
                    program = candidate
                    break
        else:
            return program


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less, the largest things first."""
    return (each for each in _candidates(program) if each != program and allowed(each))


def _candidates(program: Program) -> Iterator[Program]:
    if len(program.phases) > 1:
        for number in range(len(program.phases)):
            phases = program.phases[:number] + program.phases[number + 1 :]
            yield replace(program, phases=phases)
    for number, phase in enumerate(program.phases):
        for at in range(len(phase.turns)) if len(phase.turns) > 1 else ():
            yield _without_turn(program, number, at)
    for part in program.parts:
        yield _without_part(program, part)
    plain = Program(program.seed, program.phases)
    for field in fields(Program):
        if field.name not in ("seed", "phases", "parts", "optimizer", "options"):
            yield replace(program, **{field.name: getattr(plain, field.name)})
    yield replace(program, optimizer=plain.optimizer, options=plain.options)
    if program.optimizer == "SGD" and len(program.options) > 2:
        yield replace(program, options=program.options[:2])
    for number in range(len(program.phases)):
        yield from _smaller_phase(program, number)


def _without_turn(program: Program, number: int, at: int) -> Program:
    turns = program.phases[number].turns
    gone = program.first_turn(number) + at
    events = {
        name: value - 1
        for name in ("late_at", "thaw_at", "freeze_at")
        if (value := getattr(program, name)) is not None and value > gone
    }
    return replace(with_turns(program, number, turns[:at] + turns[at + 1 :]), **events)


def _without_part(program: Program, part: str) -> Program:
    event = {"late": "late_at", "frozen": "thaw_at", "freezes": "freeze_at"}.get(part)
    rest = tuple(each for each in program.parts if each != part)
    return replace(program, parts=rest, **({event: None} if event else {}))  # type: ignore[arg-type]


def _smaller_phase(program: Program, number: int) -> Iterator[Program]:
    phase = program.phases[number]

    def having(other: Phase) -> Program:
        return replace(program, phases=(*program.phases[:number], other, *program.phases[number + 1 :]))

    if phase.servers > 1:
        yield having(replace(phase, servers=1))
    yield having(replace(phase, placement=None))
    yield having(replace(phase, lane="memory"))
    yield having(replace(phase, weighted=False))
    if phase.workers > 1:
        for gone in reversed(range(phase.workers)):
            fewer = [replace(turn, deeds=turn.deeds[:gone] + turn.deeds[gone + 1 :]) for turn in phase.turns]
            yield having(replace(phase, turns=tuple(fewer)))
    for at, turn in enumerate(phase.turns):
        for other in _smaller_turn(turn):
            yield having(replace(phase, turns=(*phase.turns[:at], other, *phase.turns[at + 1 :])))


def _smaller_turn(turn: Turn) -> Iterator[Turn]:
    plain = Turn(tuple((Pass(),) if deed else () for deed in turn.deeds))
    yield plain
    if turn.every > 1:
        yield Turn(tuple(deed[-turn.every + 1 :] for deed in turn.deeds), turn.every - 1)
    for at, deed in enumerate(turn.deeds):
        for other in _smaller_deed(deed, turn.every):
            yield replace(turn, deeds=(*turn.deeds[:at], other, *turn.deeds[at + 1 :]))


def _smaller_deed(deed: Deed, every: int) -> Iterator[Deed]:
    if not deed:
        return
    yield (Pass(),) * every
    if len(deed) > 1:
        yield deed[1:]
    for at, each in enumerate(deed):
        for name in ("size", "branch", "discard", "stale", "weight"):
            plain = replace(each, **{name: getattr(Pass(), name)})
            yield (*deed[:at], plain, *deed[at + 1 :])
