"""An optimizer on flat blocks that still skips the parameters without a gradient, as torch does.

Torch counts steps for each parameter. On a flat block all parameters share one count, until one of them is
skipped: then the block is cut there, once, and each part goes on with its own slice of the optimizer's
state. The memory stays flat; only the views become more.

Where the memory outlives the process, an update is made in guarded chunks (`update_guard.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from argosy.errors import ConfigError
from argosy.protocol.fields import Group
from argosy.server.chunked_update import ChunkedUpdate
from argosy.server.durable_memory import Memory, OrdinaryMemory
from argosy.store.ranges import Range
from argosy.store.update_rules import RULES, Stretch, Update

_ORDINARY = OrdinaryMemory()


class FlatOptimizer:
    """The optimizer `name` of one parameter group over its flat blocks on one server.

    `memory` keeps what the optimizer needs of each block, under the block's name in `names`; `recalled`: it
    has what an earlier process of this server has left.
    """

    def __init__(
        self,
        name: str,
        group: Group,
        blocks: Sequence[torch.Tensor],
        memory: Memory = _ORDINARY,
        names: Sequence[str] | None = None,
        recalled: bool = False,
    ) -> None:
        if name not in RULES:
            raise ConfigError("optimizer", f"one of {', '.join(RULES)}", repr(name))
        self._rule = RULES[name]
        if missing := sorted(self._rule.needs - group.keys()):
            raise ConfigError(f"hyperparameters of {name}", f"{missing[0]} among them", sorted(group))
        self._values: dict[str, Any] = dict(group)
        self._blocks = list(blocks)
        self._memory = memory
        self._recalled = recalled
        self._names = [str(number) for number in range(len(blocks))] if names is None else names
        firsts = self._rule.slots(self._values)
        # The whole of each slot; the runs have views of it.
        self._slots = [
            {name: self._slot(number, name, first) for name, first in firsts.items()}
            for number in range(len(blocks))
        ]
        self._runs = [[self._run(number, 0, block.numel(), 0.0)] for number, block in enumerate(blocks)]
        self._whole: Update | None = None  # of all blocks, made when it is needed

    def _slot(self, number: int, name: str, first: float) -> torch.Tensor:
        """The state of this name of a block: as an earlier process has left it, or new."""
        slot, found = self._memory.tensor(f"{self._names[number]}/{name}", self._blocks[number])
        return slot if found and self._recalled else slot.fill_(first)

    def _run(self, number: int, start: int, stop: int, updates: float) -> Stretch:
        slots = {name: slot[start:stop] for name, slot in self._slots[number].items()}
        return Stretch(start, stop, self._blocks[number][start:stop], slots, updates)

    def slots(self, number: int) -> dict[str, torch.Tensor]:
        """The state that is kept for a block, by name."""
        return self._slots[number]

    def steps(self, number: int) -> list[tuple[int, int, float]]:
        """The updates so far of each stretch of a block: start, stop, count."""
        return [(run.start, run.stop, run.updates) for run in self._runs[number]]

    def restore(self, number: int, steps: Iterable[tuple[int, int, float, float]]) -> None:
        """The slots of a block hold what was saved; of each part: start, stop, updates so far, stretch.

        Neighbours of one stretch become one again: on a part of its own, a kernel may round otherwise.
        """
        joined: list[tuple[int, int, float, float]] = []
        size = self._blocks[number].numel()
        for start, stop, *kind in steps:
            if start == stop and size:
                continue  # nothing is in it to be updated
            if joined and joined[-1][1] == start and list(joined[-1][2:]) == kind:
                joined[-1] = (joined[-1][0], stop, kind[0], kind[1])
            else:
                joined.append((start, stop, kind[0], kind[1]))
        self._runs[number] = [self._run(number, start, stop, count) for start, stop, count, _ in joined]
        self._whole = None

    def configure(self, group: Group) -> None:
        """Hyperparameters from now on."""
        if group == self._values:
            return
        self._values |= group
        self._whole = None
        slots = self._rule.slots(self._values)
        for number, kept in enumerate(self._slots):
            for name in slots.keys() - kept.keys():  # momentum was switched on, for example
                kept[name] = self._slot(number, name, slots[name])
                for run in self._runs[number]:
                    run.slots[name] = kept[name][run.start : run.stop]

    def update_whole(self, gradients: list[torch.Tensor]) -> None:
        """Apply a gradient for each block, in which nothing is absent."""
        if self._whole is None:
            if self._memory.guard is None and any(len(runs) > 1 for runs in self._runs):
                self.update(gradients, [[] for _ in gradients])
                return
            everything = [(number, run) for number, runs in enumerate(self._runs) for run in runs]
            self._whole = self._bind(everything)
        self._whole(gradients)

    def update(self, gradients: Sequence[torch.Tensor | None], absent: Sequence[Sequence[Range]]) -> None:
        """Apply a gradient for each block (None: nothing in it has one), except in the `absent` ranges."""
        chosen: list[tuple[int, Stretch]] = []
        for number, (gradient, ranges) in enumerate(zip(gradients, absent, strict=True)):
            if gradient is None:
                continue
            if ranges:
                self._cut(number, ranges)
            chosen += [
                (number, run)
                for run in self._runs[number]
                if not any(start <= run.start and run.stop <= stop for start, stop in ranges)
            ]
        if not chosen:
            return
        present = [torch.empty(0) if gradient is None else gradient for gradient in gradients]
        if self._memory.guard is None:
            present = [present[number][run.start : run.stop] for number, run in chosen]
        self._bind(chosen)(present)

    def _bind(self, runs: Sequence[tuple[int, Stretch]]) -> Update:
        """The update of these runs: takes a gradient for each or, where it is guarded, one for each block."""
        if self._memory.guard is None:
            return self._rule.bind([run for _, run in runs], self._values)
        return ChunkedUpdate(self._memory.guard, self._rule, self._values, runs)

    def _cut(self, number: int, ranges: Iterable[Range]) -> None:
        """Make every range begin and end where runs do."""
        edges = sorted({edge for pair in ranges for edge in pair})
        result: list[Stretch] = []
        for run in self._runs[number]:
            inner = [edge for edge in edges if run.start < edge < run.stop]
            result += run.split([run.start, *inner, run.stop]) if inner else [run]
        self._runs[number] = result
        self._whole = None
