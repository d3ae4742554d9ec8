"""One program from its seed to its differences, and what is printed of one that has some."""

from __future__ import annotations

import torch
from comparing import compare, same_bits
from executing import orders, run
from programs import Program, unbroken
from reference import reference
from rendering import render
from shrinking import shrink

# A program that hangs is one that fails; a busy machine must not look like it.
PATIENCE = 20.0
SHORT_PATIENCE = 4.0


def differences(program: Program, patience: float = PATIENCE) -> list[str]:
    """What is not as the pages say; an error is a difference too."""
    torch.set_num_threads(1)
    expected = reference(program, orders(program))
    try:
        got = run(program, patience)
        found = compare(program, got, expected)
        if not found and (whole := unbroken(program)) is not None:
            found = list(same_bits(got, run(whole, patience)))
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return found


def report(program: Program) -> str:
    """The smallest program that still differs, with its differences, as text for a person."""
    smallest = shrink(program, lambda each: bool(differences(each, SHORT_PATIENCE)))
    lines = [f"# {line}" for line in differences(smallest, SHORT_PATIENCE)[:6]]
    return "\n".join([render(smallest), *lines])
