"""A torch optimizer on flat blocks that still skips the parameters without a gradient, as torch does.

Torch counts steps for each parameter. On a flat block all parameters share one count, until one of them is
skipped: then the block is cut there, once, and each part goes on with its own slice of the optimizer's
state. The memory stays flat; only the views become more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from argosy.store.optimizers import build
from argosy.wire.protocol import Group, OptimizerSpec

Range: TypeAlias = tuple[int, int]


class _Run:
    """A stretch of a block whose parameters have always been updated together."""

    def __init__(self, start: int, stop: int, view: torch.Tensor) -> None:
        self.start = start
        self.stop = stop
        self.view = view


class FlatOptimizer:
    """The optimizer of one parameter group over its flat blocks on one server."""

    def __init__(self, spec: OptimizerSpec, group: Group, blocks: Sequence[torch.Tensor]) -> None:
        self._blocks = list(blocks)
        self._runs = [[_Run(0, block.numel(), block.view(-1))] for block in blocks]
        self._optimizer = build(spec, group, [runs[0].view for runs in self._runs])

    def configure(self, group: Group) -> None:
        """Hyperparameters from now on."""
        self._optimizer.param_groups[0].update(group)

    def update(self, gradients: Sequence[torch.Tensor | None], absent: Sequence[Sequence[Range]]) -> None:
        """Apply a gradient for each block (None: nothing in it has one), except in the `absent` ranges."""
        self._cut(absent)
        for runs, gradient, ranges in zip(self._runs, gradients, absent, strict=True):
            for run in runs:
                skipped = gradient is None or any(a <= run.start and run.stop <= b for a, b in ranges)
                run.view.grad = None if gradient is None or skipped else gradient[run.start : run.stop]
        self._optimizer.step()

    def _cut(self, absent: Sequence[Sequence[Range]]) -> None:
        """Make every range begin and end where runs do."""
        changed = False
        for number, ranges in enumerate(absent):
            edges = {edge for pair in ranges for edge in pair}
            inner = [any(r.start < e < r.stop for e in edges) for r in self._runs[number]]
            if not any(inner):
                continue
            changed = True
            pieces = [self._split(number, run, edges) for run in self._runs[number]]
            self._runs[number] = [run for parts in pieces for run in parts]
        if changed:
            self._optimizer.param_groups[0]["params"] = [run.view for runs in self._runs for run in runs]

    def _split(self, number: int, run: _Run, edges: Iterable[int]) -> list[_Run]:
        bounds = [run.start, *sorted(e for e in edges if run.start < e < run.stop), run.stop]
        if len(bounds) == 2:
            return [run]
        state = self._optimizer.state.pop(run.view, {})
        parts = []
        for start, stop in pairwise(bounds):
            part = _Run(start, stop, self._blocks[number][start:stop])
            if state:
                self._optimizer.state[part.view] = _slice(state, run, start, stop)
            parts.append(part)
        return parts


def _slice(state: dict[str, Any], run: _Run, start: int, stop: int) -> dict[str, Any]:
    """The state of a part of a run: views of what is per element, copies of what is not."""
    result: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == run.view.shape:
            result[key] = value[start - run.start : stop - run.start]
        else:
            result[key] = value.clone() if isinstance(value, torch.Tensor) else value
    return result
