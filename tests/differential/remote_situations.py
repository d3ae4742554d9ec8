"""Situations of remote programs in which numbers were once wrong; see `situations`."""

from __future__ import annotations

from collections.abc import Callable

from remote_programs import RemoteProgram


def norm_of_data(program: RemoteProgram) -> bool:
    return "norm" in program.parts


def norm_elsewhere(program: RemoteProgram) -> bool:
    return "normed" in program.parts and program.home != program.away


def error_in_a_row(program: RemoteProgram) -> bool:
    return program.captured and any(call.fails for call in program.calls)


def other_recording(program: RemoteProgram) -> bool:
    kinds = {(call.factor, call.branch) for call in program.calls}
    return program.captured and program.grads and len(kinds) > 1


REMOTE_SITUATIONS: dict[str, tuple[Callable[[RemoteProgram], bool], tuple[str, ...]]] = {
    "remote: normalised data": (norm_of_data, ("norm",)),
    "remote: statistics elsewhere": (norm_elsewhere, ("normed", "normed, captured")),
    "remote: an error in a captured step": (error_in_a_row, ("captured, fails",)),
    "remote: gradients of an earlier recording": (other_recording, ("captured, grads, factors",)),
}
