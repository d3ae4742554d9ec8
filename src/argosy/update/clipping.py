"""Clipping by the norm over all servers: each reports the square of its share, one factor goes to all."""

from __future__ import annotations

import math


class NormCollector:
    """Collects the squares of the shares of one step after another."""

    def __init__(self, servers: int, max_norm: float) -> None:
        self._servers = servers
        self._max_norm = max_norm
        self._squares: dict[int, dict[int, float]] = {}

    def report(self, server: int, step: int, square: float) -> float | None:
        """The factor for `step` once all servers have reported; as torch's `clip_grad_norm_` has it."""
        squares = self._squares.setdefault(step, {})
        squares[server] = square
        if len(squares) < self._servers:
            return None
        del self._squares[step]
        norm = math.sqrt(math.fsum(squares[s] for s in sorted(squares)))
        return min(1.0, self._max_norm / (norm + 1e-6))
