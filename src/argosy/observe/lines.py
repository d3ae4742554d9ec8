"""How progress reads: the same words, in columns, wherever a line of it is shown."""

from __future__ import annotations

from collections.abc import Mapping


def step_text(step: int, last_step: int | None) -> str:
    """`step  900 of 2000`: as wide at the first step as at the last."""
    if last_step is None:
        return f"step {step:6d}"
    return f"step {step:{len(str(last_step))}d} of {last_step}"


def numbers_text(numbers: Mapping[str, float]) -> str:
    """`  loss 0.4613   accuracy 0.9102`."""
    return "".join(f"  {name} {number_text(value)}" for name, value in numbers.items())


def number_text(value: float) -> str:
    """Four digits that count, in seven columns where they fit."""
    return f"{value:<#7.4g}"


def duration_text(seconds: float) -> str:
    """`0:42`, `12:05`, `3:07:00`, `2 days 4 h`."""
    whole = round(max(0.0, seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    if days:
        return f"{days} {'day' if days == 1 else 'days'} {hours} h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
