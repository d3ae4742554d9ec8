"""An update of runs of flat blocks in chunks, each guarded against the end of the process in the middle."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from argosy.server.update_guard import UpdateGuard, chunk_of, spans_of
from argosy.store.update_rules import Rule, Stretch, Update, Values


class _Chunk:
    """A part of a run: how it is updated, and which bytes that changes."""

    def __init__(self, number: int, part: Stretch, update: Update, counts: bool) -> None:
        self.number = number
        self.part = part
        self.gradient: torch.Tensor
        self.spans = spans_of([part.parameter, *part.slots.values()])
        self._update = update
        self._counts = counts

    def change(self) -> None:
        """Apply the gradient."""
        self._update([self.gradient])

    def passed(self) -> None:
        """It was applied before."""
        if self._counts:
            self.part.count()


class ChunkedUpdate:
    """Of these runs, each with the number of its block; called with a gradient for each block."""

    def __init__(
        self, guard: UpdateGuard, rule: Rule, values: Values, runs: Sequence[tuple[int, Stretch]]
    ) -> None:
        self._guard = guard
        self._chunks: list[_Chunk] = []
        self._firsts: list[tuple[Stretch, Stretch]] = []  # each run, and its first part
        counts = rule.counts(values)
        for number, run in runs:
            size = chunk_of([run.parameter, *run.slots.values()])
            parts = run.split([*range(run.start, run.stop, size), run.stop]) or [run.whole()]
            self._firsts.append((run, parts[0]))
            self._chunks += [_Chunk(number, part, rule.bind([part], values), counts) for part in parts]

    def __call__(self, gradients: Sequence[torch.Tensor]) -> None:
        guard = self._guard
        for chunk in self._chunks:
            chunk.gradient = gradients[chunk.number][chunk.part.start : chunk.part.stop]
            guard.change(chunk.spans, chunk.change, chunk.passed)
        for run, part in self._firsts:
            run.follow(part)
