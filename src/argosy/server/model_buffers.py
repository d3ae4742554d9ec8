"""Model buffers (running statistics of BatchNorm and the like) on the coordinator.

Workers bring the buffers that changed with their gradients. "chief": worker 0's count. "mean": the mean of
what each worker brought last; of whole numbers, such as counters, the largest.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import msgspec
import torch

from argosy.modes import BufferRule
from argosy.server.executor_state import KeptTensor


class BuffersState(msgspec.Struct, array_like=True):
    """What the next process of the coordinator needs of them."""

    rule: BufferRule
    values: dict[str, KeptTensor]
    latest: dict[int, dict[str, KeptTensor]]
    moving: list[str]


class ModelBuffers:
    """The buffers that everybody gets."""

    def __init__(self) -> None:
        self.rule: BufferRule = "chief"
        self._values: dict[str, torch.Tensor] = {}
        self._latest: dict[int, dict[str, torch.Tensor]] = {}
        # Those that change in training: every answer carries them.
        self.moving: dict[str, torch.Tensor] = {}

    def value(self) -> bytes:
        """All of this as plain data."""
        values = {name: KeptTensor.of(value) for name, value in self._values.items()}
        latest = {
            worker: {name: KeptTensor.of(value) for name, value in mine.items()}
            for worker, mine in self._latest.items()
        }
        return msgspec.msgpack.encode(BuffersState(self.rule, values, latest, list(self.moving)))

    def recall(self, value: bytes) -> None:
        """Go on from there."""
        state = msgspec.msgpack.decode(value, type=BuffersState)
        self.rule = state.rule
        self._values = {name: kept.tensor() for name, kept in state.values.items()}
        self._latest = {
            worker: {name: kept.tensor() for name, kept in mine.items()}
            for worker, mine in state.latest.items()
        }
        self.moving = {name: self._values[name] for name in state.moving}

    def initialise(self, rule: BufferRule, values: Mapping[str, torch.Tensor]) -> None:
        """What the chief starts with."""
        self.rule = rule
        self._values |= {name: value.clone() for name, value in values.items()}
        self.moving = {name: self._values[name] for name in self.moving}

    def known(self, name: str, value: torch.Tensor) -> bool:
        """Whether this is a buffer of that shape and dtype."""
        mine = self._values.get(name)
        return mine is not None and mine.shape == value.shape and mine.dtype == value.dtype

    def bring(self, brought: Sequence[tuple[int, Mapping[str, torch.Tensor]]]) -> None:
        """The workers' buffers, with the gradients of a step that has just been made.

        Of those of this step, who does not bring one that another brings has left it as it was.
        """
        counts = [(worker, mine) for worker, mine in brought if self.rule == "mean" or worker == 0]
        names = dict.fromkeys(name for _, mine in counts for name in mine)
        for worker, mine in counts if names else ():
            latest = self._latest.setdefault(worker, {})
            for name in names:
                latest[name] = mine[name].clone() if name in mine else self._values[name]
        for name in names:
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
