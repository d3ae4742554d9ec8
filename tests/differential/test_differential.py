"""Random training programs against plain PyTorch: what differs is made small, and printed as a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from allowing import allowed
from comparing import compare
from executing import run
from found import FOUND, REMOTE_FOUND
from generating import FEATURES, generate
from known import KNOWN
from programs import Pass, Phase, Program, Turn
from reference import reference
from remote_situations import REMOTE_SITUATIONS
from rendering import render
from shrinking import shrink
from situations import SITUATIONS
from sweeping import REMOTE, TRAINING, programs, sweep

PROGRAMS, BLOCKS = 300, 12


@pytest.mark.parametrize("block", range(BLOCKS))
def test_programs_agree_with_plain_pytorch(block: int) -> None:
    found = sweep(10_000 * block, PROGRAMS // BLOCKS)
    assert not found, found


KINDS = {**dict.fromkeys(SITUATIONS, TRAINING), **dict.fromkeys(REMOTE_SITUATIONS, REMOTE)}
FINDS: dict[str, tuple[Any, ...]] = {**FOUND, **REMOTE_FOUND}


@pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, found in FINDS.items() for n in range(len(found))]
)
def test_what_was_once_wrong(name: str, number: int) -> None:
    """Mended, it agrees. What is not mended yet is in `known`."""
    kind, program = KINDS[name], FINDS[name][number]
    assert name in kind.met(program)
    if not set(kind.met(program)) & KNOWN.keys():
        assert not kind.differences(program), kind.report(program)


@pytest.mark.parametrize("name", KINDS)
def test_the_generator_comes_upon_every_situation(name: str) -> None:
    kind = KINDS[name]
    is_in, ways = kind.situations[name]
    for words in ways:
        assert any(is_in(kind.generate(seed, words.split(", "))) for seed in range(1000)), words


def test_what_is_known_is_a_situation() -> None:
    assert KNOWN.keys() <= KINDS.keys() == FINDS.keys()


# --- the parts of it --------------------------------------------------------------------------------------
def test_a_seed_makes_one_program() -> None:
    assert [generate(seed) for seed in range(50)] == [generate(seed) for seed in range(50)]
    assert len({repr(program) for _, program in programs(0, 60)}) == 60


@pytest.mark.parametrize("feature", sorted(FEATURES))
def test_a_feature_that_is_asked_for_can_be_made(feature: str) -> None:
    assert generate(1, {feature}).phases


def _plain(**changes: Any) -> Program:
    turns = (Turn(((Pass(),), (Pass(),))),) * 2
    return replace(Program(0, (Phase("sync", turns, 1),)), **changes)


def test_what_torch_itself_refuses_is_no_program() -> None:
    """A cosine that turns around wants the groups that it was made with."""
    turns = (Turn(((Pass(),), (Pass(),))),) * 13
    refused = replace(_plain(phases=(Phase("sync", turns, 1),)), scheduler="cosine")
    assert allowed(refused)
    refused = replace(refused, parts=("linear", "late"), late_at=3)
    with pytest.raises(ValueError, match="zip"):
        reference(refused)
    assert not allowed(refused)
    assert allowed(replace(refused, phases=(Phase("sync", turns[1:], 1),)))


WRONG: dict[str, Callable[[Program], Program]] = {
    "another rate": lambda program: replace(program, options=(("lr", 0.1001),)),
    "momentum": lambda program: replace(program, options=(("lr", 0.1), ("momentum", 0.01))),
    "no clipping": lambda program: replace(program, clip=None),
    "another batch": lambda program: replace(
        program, phases=(replace(program.phases[0], turns=(Turn(((Pass(),), (Pass(size=3),))),) * 2),)
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_reference_is_noticed(what: str) -> None:
    """The comparison can fail: against a reference that differs a little it does."""
    program = _plain(clip="norm", reads=True, watches=True)
    assert not TRAINING.differences(program)
    got, other = run(program), reference(WRONG[what](program))
    assert compare(program, got, other)


def test_a_scaled_loss_whose_gradients_are_sent_ahead() -> None:
    phase = replace(_plain().phases[0], lane="network")
    assert not TRAINING.differences(_plain(phases=(phase,), scaler=True, overlap=True))


def test_shrinking_keeps_what_matters_and_nothing_else() -> None:
    def fails(program: Program) -> bool:
        skips = any(each.act == "skip" for each in program.passes)
        return skips and "tied" in program.parts and program.average is not None

    large = next(
        program
        for seed in range(10**6)
        if fails(program := generate(seed, {"ring", "skip", "tied", "average", "scheduler"}))
    )
    small = shrink(large, fails)
    assert fails(small)
    assert small.parts == ("tied",)
    assert small.scheduler is None
    assert sum(len(phase.turns) for phase in small.phases) == 1
    assert len(list(small.passes)) <= 2


def test_a_program_is_told_as_a_script() -> None:
    text = render(_plain(average=0.9))
    compile(text, "program", "exec")
    assert "argosy run --ps 1 --workers 2 program.py" in text
    assert "replica = argosy.join(mode=argosy.Sync())" in text
    assert len(text.splitlines()) < 65
