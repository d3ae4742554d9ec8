"""Compares how a program ended with how it should have: the same bits in all workers that stayed, and the
reference's numbers within what another order of the same arithmetic may change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from programs import Phase, Program
from reference import Ended, Final, State
from torch import Tensor

# Sums of the same numbers in another order, a few steps long. In bfloat16 one may be rounded otherwise.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2}


def compare(program: Program, got: list[Ended], expected: list[Ended]) -> list[str]:
    """Every difference, as a line; none if all is as the pages say."""
    return [
        f"phase {number}: {line}"
        for number, phase in enumerate(program.phases)
        for line in _compare_phase(program, phase, got[number], expected[number])
    ]


def _compare_phase(program: Program, phase: Phase, got: Ended, expected: Ended) -> Iterator[str]:
    least = _least(program)
    for worker, (mine, right) in enumerate(zip(got.workers, expected.workers, strict=True)):
        where = f"worker {worker}"
        yield from _verdicts(where, phase, mine, right)
        if phase.served and right.left:
            continue
        yield from _states(f"{where}: ", mine.values, right.values, least)
        if program.watches:
            yield from _watched(where, mine, right, least)
        if right.average is not None:
            yield from _states(f"{where}: average of ", mine.average or {}, right.average, least)
        if right.kept is not None:
            short = 2e-2 if "short" in program.parts else least  # made of gradients in half precision
            yield from _slots(f"{where}: optimizer's state of ", mine.kept or {}, right.kept, short)
    yield from _bits(phase, got, expected)
    if expected.saved is not None:
        yield from _states("checkpoint: ", got.saved or {}, expected.saved, least)
    if expected.saved_average is not None:
        yield from _states("checkpoint: average of ", got.saved_average or {}, expected.saved_average, least)


def _least(program: Program) -> float:
    """The least tolerance: what is clipped together is as exact as its least exact part."""
    if program.clip is None:
        return 0.0
    return 2e-2 if "short" in program.parts else 1e-4 if "single" in program.parts else 0.0


def _states(prefix: str, got: Mapping[str, Tensor], right: State, least: float) -> Iterator[str]:
    if got.keys() != right.keys():
        yield f"{prefix}names: expected {sorted(right)}, got {sorted(got)}"
        return
    for name, value in right.items():
        if line := _difference(got[name], value, least):
            yield f"{prefix}{name}: {line}"


def _difference(got: Tensor, right: Tensor, least: float = 0.0) -> str:
    if got.shape != right.shape or got.dtype != right.dtype:
        return f"expected {right.dtype} {list(right.shape)}, got {got.dtype} {list(got.shape)}"
    tolerance = max(least, _TOLERANCE.get(got.dtype, 0.0))
    if torch.allclose(got.double(), right.double(), rtol=tolerance, atol=tolerance, equal_nan=True):
        return ""
    return f"expected {_short(right)}, got {_short(got)}"


def _short(value: Tensor) -> str:
    numbers = [f"{number:.6g}" for number in value.double().flatten()[:4].tolist()]
    return f"[{', '.join(numbers)}{', ...' if value.numel() > 4 else ''}]"


def _verdicts(where: str, phase: Phase, got: Final, right: Final) -> Iterator[str]:
    mine, theirs = got.verdicts, right.verdicts
    if phase.way == "async" and phase.workers > 1:  # who comes first is left to chance
        mine, theirs = [(status, 0) for status, _ in mine], [(status, 0) for status, _ in theirs]
    if mine != theirs:
        yield f"{where}: verdicts: expected {theirs}, got {mine}"


def _watched(where: str, got: Final, right: Final, least: float) -> Iterator[str]:
    names = list(right.values)
    for turn, (mine, theirs) in enumerate(zip(got.seen, right.seen, strict=False)):
        for name, value, expected in zip(names, mine, theirs, strict=True):
            if line := _difference(value, expected, least):
                yield f"{where}: {name} after its turn {turn}: {line}"


def same_bits(got: list[Ended], whole: list[Ended]) -> Iterator[str]:
    """A training that was resumed ends as the same one in one go, bit for bit."""
    for worker, (mine, theirs) in enumerate(zip(got[-1].workers, whole[-1].workers, strict=True)):
        for name, value in theirs.values.items():
            if not torch.equal(mine.values[name], value):
                yield f"worker {worker}: {name}: resumed, it has not the bits of a training in one go"


def _slots(
    prefix: str, got: Mapping[int, Mapping[str, Any]], right: Mapping[int, Mapping[str, Any]], least: float
) -> Iterator[str]:
    for number in sorted(got.keys() | right.keys()):
        mine, theirs = _filled(got.get(number, {})), _filled(right.get(number, {}))
        if "step" not in theirs:  # SGD has none; servers count for it all the same
            mine.pop("step", None)
        if not theirs and mine.keys() == {"sum"} and mine["sum"].unique().numel() <= 1:
            continue  # Adagrad's as it begins: torch makes it with the first gradient, servers before
        if mine.keys() != theirs.keys():
            yield f"{prefix}parameter {number}: expected {sorted(theirs)}, got {sorted(mine)}"
            continue
        for name, value in theirs.items():
            if line := _difference(mine[name].to(value.dtype), value, least):
                yield f"{prefix}parameter {number}, {name}: {line}"


def _filled(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value) for name, value in state.items() if value is not None}


def _bits(phase: Phase, got: Ended, expected: Ended) -> Iterator[str]:
    """Workers that stayed to the end hold the same final parameters, bit for bit."""
    last = max(len(worker.verdicts) for worker in got.workers)
    turns = phase.turns[-1]
    stayed = [n for n, deed in enumerate(turns.deeds) if deed and not expected.workers[n].left]
    if phase.way != "async":
        stayed = [n for n in stayed if got.workers[n].verdicts[-1:] == got.workers[stayed[0]].verdicts[-1:]]
    for worker in stayed[1:]:
        first = got.workers[stayed[0]].values
        for name, value in got.workers[worker].values.items():
            if not torch.equal(value, first[name]) and last:
                yield f"worker {worker}: {name}: not the bits of worker {stayed[0]}"
