"""Where in the user's program an operation was called: noted cheaply for each, described only for an error.

A site is the number of a stack of (code, instruction) pairs, without the frames of torch and of this package.
A program has few of them, so each is kept once, for good.
"""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

_FOREIGN = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parents[2]),
    "<frozen",
    "<__array_function",
)
# The depth to which a stack is followed, and the number of the user's frames that are kept.
_DEPTH = 40
_KEPT = 4

_is_foreign: dict[CodeType, bool] = {}
_numbers: dict[tuple[CodeType | int, ...], int] = {}
_stacks: list[tuple[CodeType | int, ...]] = []


def here() -> int:
    """The site of the caller's caller."""
    frame: FrameType | None = sys._getframe(2)
    stack: list[CodeType | int] = []
    depth = 0
    while frame is not None and depth < _DEPTH:
        code = frame.f_code
        foreign = _is_foreign.get(code)
        if foreign is None:
            foreign = _is_foreign[code] = code.co_filename.startswith(_FOREIGN)
        if not foreign:
            stack.append(code)
            stack.append(frame.f_lasti)
            if len(stack) == 2 * _KEPT:
                break
        depth += 1
        frame = frame.f_back
    key = tuple(stack)
    number = _numbers.get(key)
    if number is None:
        number = _numbers[key] = len(_stacks)
        _stacks.append(key)
    return number


def describe(site: int) -> str:
    """The stack of a site as a traceback shows it, innermost call last; empty if the site is unknown."""
    if not 0 <= site < len(_stacks):
        return ""
    stack = _stacks[site]
    lines = []
    for position in range(len(stack) - 2, -1, -2):
        code, instruction = stack[position], stack[position + 1]
        assert isinstance(code, CodeType)
        assert isinstance(instruction, int)
        line = _line(code, instruction)
        lines.append(f'  File "{code.co_filename}", line {line}, in {code.co_name}')
        if text := linecache.getline(code.co_filename, line).strip():
            lines.append(f"    {text}")
    return "\n".join(lines)


def _line(code: CodeType, instruction: int) -> int:
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno
