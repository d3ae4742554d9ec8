"""Model buffers (running statistics of BatchNorm and the like) on the coordinator.

Workers bring the buffers that changed with their gradients. "chief": worker 0's count. "mean": the mean of
what each worker brought last; of whole numbers, such as counters, the largest.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch

from argosy.modes import BufferRule


class Buffers:
    """The buffers that everybody gets."""

    def __init__(self) -> None:
        self.rule: BufferRule = "chief"
        self._values: dict[str, torch.Tensor] = {}
        self._latest: dict[int, dict[str, torch.Tensor]] = {}
        # Those that change in training: every answer carries them.
        self.moving: dict[str, torch.Tensor] = {}

    def initialise(self, rule: BufferRule, values: Mapping[str, torch.Tensor]) -> None:
        """What the chief starts with."""
        self.rule = rule
        self._values |= {name: value.clone() for name, value in values.items()}
        self.moving = {name: self._values[name] for name in self.moving}

    def known(self, name: str, value: torch.Tensor) -> bool:
        """Whether this is a buffer of that shape and dtype."""
        mine = self._values.get(name)
        return mine is not None and mine.shape == value.shape and mine.dtype == value.dtype

    def bring(self, worker: int, brought: Mapping[str, torch.Tensor]) -> None:
        """A worker's buffers, with a gradient that has just been applied."""
        if brought and (self.rule == "mean" or worker == 0):
            copies = {name: value.clone() for name, value in brought.items()}
            self._latest[worker] = {**self._latest.get(worker, {}), **copies}
            for name in brought:
                self.moving[name] = self._values[name] = self._combined(name)

    def forget(self, worker: int) -> None:
        """A worker has left: what it brought last no longer counts in a mean to come."""
        self._latest.pop(worker, None)

    def _combined(self, name: str) -> torch.Tensor:
        values = [self._latest[w][name] for w in sorted(self._latest) if name in self._latest[w]]
        if len(values) == 1:
            return values[0]
        stacked = torch.stack(values)
        return stacked.mean(dim=0) if stacked.dtype.is_floating_point else stacked.amax(dim=0)

    def beside(self, trained: Container[str]) -> dict[str, torch.Tensor]:
        """What is saved beside these parameters, some of which may have been constants at first."""
        return {name: value for name, value in self._values.items() if name not in trained}

    def everything(self) -> dict[str, torch.Tensor]:
        """All of them: what a worker starts from."""
        return dict(self._values)
