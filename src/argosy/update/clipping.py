"""Clipping by the norm over all servers: each reports the square of its share, one factor goes to all."""

from __future__ import annotations

import math


class NormCollector:
    """Collects the squares of the shares of one step after another."""

    def __init__(self, servers: int, max_norm: float) -> None:
        self._servers = servers
        self._max_norm = max_norm
        self._squares: dict[int, dict[int, float]] = {}
        self._settled = 0  # the latest step whose factor is known

    def value(self) -> tuple[dict[int, dict[int, float]], int]:
        """All of this as plain data."""
        return self._squares, self._settled

    def recall(self, value: tuple[dict[int, dict[int, float]], int]) -> None:
        """Go on from there."""
        self._squares, self._settled = value

    def report(self, server: int, step: int, square: float) -> float | None:
        """The factor for `step` once all servers have reported; as torch's `clip_grad_norm_` has it."""
        if step <= self._settled and step not in self._squares:  # a server was started again, and repeats it
            return None
        squares = self._squares.setdefault(step, {})
        squares[server] = square
        if len(squares) < self._servers:
            return None
        del self._squares[step]
        self._settled = max(step, self._settled)
        norm = math.sqrt(math.fsum(squares[s] for s in sorted(squares)))
        return min(1.0, self._max_norm / (norm + 1e-6))
