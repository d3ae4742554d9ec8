"""An optimizer on flat blocks that still skips the parameters without a gradient, as torch does.

Torch counts steps for each parameter. On a flat block all parameters share one count, until one of them is
skipped: then the block is cut there, once, and each part goes on with its own slice of the optimizer's
state. The memory stays flat; only the views become more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from argosy.errors import ConfigError
from argosy.store.ranges import Range
from argosy.store.rules import RULES, Run
from argosy.wire.protocol import Group


class FlatOptimizer:
    """The optimizer `name` of one parameter group over its flat blocks on one server."""

    def __init__(self, name: str, group: Group, blocks: Sequence[torch.Tensor]) -> None:
        if name not in RULES:
            raise ConfigError("optimizer", f"one of {', '.join(RULES)}", repr(name))
        self._rule = RULES[name]
        if missing := sorted(self._rule.needs - group.keys()):
            raise ConfigError(f"hyperparameters of {name}", f"{missing[0]} among them", sorted(group))
        self._values: dict[str, Any] = dict(group)
        self._runs = [[self._whole(block)] for block in blocks]

    def _whole(self, block: torch.Tensor) -> Run:
        slots = {
            name: torch.full_like(block, first) for name, first in self._rule.slots(self._values).items()
        }
        return Run(0, block.numel(), block, slots, torch.zeros(()))

    def configure(self, group: Group) -> None:
        """Hyperparameters from now on."""
        if group == self._values:
            return
        self._values |= group
        slots = self._rule.slots(self._values)
        for run in (run for runs in self._runs for run in runs):
            for name in slots.keys() - run.slots.keys():  # momentum was switched on, for example
                run.slots[name] = torch.full_like(run.parameter, slots[name])

    def update(self, gradients: Sequence[torch.Tensor | None], absent: Sequence[Sequence[Range]]) -> None:
        """Apply a gradient for each block (None: nothing in it has one), except in the `absent` ranges."""
        chosen: list[Run] = []
        parts: list[torch.Tensor] = []
        for number, (gradient, ranges) in enumerate(zip(gradients, absent, strict=True)):
            if gradient is None:
                continue
            if ranges:
                self._cut(number, ranges)
            runs = self._runs[number]
            if len(runs) == 1 and not ranges:
                chosen.append(runs[0])
                parts.append(gradient)
                continue
            for run in runs:
                if not any(start <= run.start and run.stop <= stop for start, stop in ranges):
                    chosen.append(run)
                    parts.append(gradient[run.start : run.stop])
        if chosen:
            self._rule.apply(chosen, parts, self._values)

    def _cut(self, number: int, ranges: Iterable[Range]) -> None:
        """Make every range begin and end where runs do."""
        edges = sorted({edge for pair in ranges for edge in pair})
        result: list[Run] = []
        for run in self._runs[number]:
            inner = [edge for edge in edges if run.start < edge < run.stop]
            result += run.split([run.start, *inner, run.stop]) if inner else [run]
        self._runs[number] = result
