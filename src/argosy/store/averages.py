"""Moving averages of parameters."""

from __future__ import annotations


def decay_at(decay: float, step: int) -> float:
    """The decay at a step: smaller in the first ones, so that the average is not tied to where it began."""
    return min(decay, (1.0 + step) / (10.0 + step))
