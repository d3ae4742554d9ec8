"""A session: starts from the chief's parameters, hands out batches until the job ends, leaves cleanly."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from argosy.errors import ConfigError
from argosy.events import say
from argosy.modes import Sync
from argosy.replica.exchange import Training
from argosy.replica.optimizer import DistributedOptimizer

if TYPE_CHECKING:
    from argosy.replica.replica import Replica

T = TypeVar("T")
LOG_EVERY = 10.0


class Session:
    """Made by `replica.session(...)`; a context manager."""

    def __init__(self, replica: Replica, optimizer: DistributedOptimizer, training: Training) -> None:
        if not isinstance(optimizer, DistributedOptimizer):
            raise ConfigError(
                "optimizer", "what replica.distribute() gave", type(optimizer).__name__, "distribute it first"
            )
        self._replica = replica
        self._optimizer = optimizer
        self._training = training
        self._weighted = isinstance(replica.mode, Sync) and replica.mode.weighted
        self._logged_at = time.monotonic()
        self._logged_step = 0

    def __enter__(self) -> Session:
        verdict = self._optimizer.start(self._training)
        self._logged_at, self._logged_step = time.monotonic(), verdict.global_step
        if verdict.stop:
            say(f"step {verdict.global_step} is reached already: nothing is left to train")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            self._replica.fail(error)
            return
        self._optimizer.finish()
        self._replica.leave()

    @property
    def global_step(self) -> int:
        """The updates of the whole job, as far as this worker knows."""
        return self._optimizer.verdict.global_step

    @property
    def should_stop(self) -> bool:
        """Whether the job has reached its last step."""
        return self._optimizer.verdict.stop

    def batches(self, loader: Iterable[T], epochs: int | None = None) -> Iterator[T]:
        """The batches of `loader` until the job should stop, or this worker's data ends.

        A loader that can be iterated again is repeated, `epochs` times or without end; an iterator is
        used up once.
        """
        if epochs is not None and epochs < 0:
            raise ConfigError("epochs", "a number of epochs, 0 or more", epochs)
        passes = 0
        while epochs is None or passes < epochs:
            passes += 1
            iterator = iter(loader)
            empty = True
            while not self.should_stop:
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                empty = False
                if self._weighted:
                    self._optimizer.batch_weight = float(_batch_size(batch))
                yield batch
            if self.should_stop or empty or iterator is loader:
                return

    def log(self, **values: Any) -> None:
        """Numbers of this step. A tensor's value is read only when a line is due, every few seconds."""
        now = time.monotonic()
        if now - self._logged_at < LOG_EVERY:
            return
        rate = (self.global_step - self._logged_step) / (now - self._logged_at)
        self._logged_at, self._logged_step = now, self.global_step
        numbers = "".join(f", {name} {_number(value):.4g}" for name, value in values.items())
        if self._replica.is_chief:
            total = "" if self._training.last_step is None else f" of {self._training.last_step}"
            say(f"step {self.global_step}{total}{numbers}, {rate:.0f} steps/s")


def _number(value: Any) -> float:
    """Detached first: torch warns of a loss that is made a number."""
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _batch_size(batch: object) -> int:
    """The length of the first tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else 1
    if isinstance(batch, dict):
        return _batch_size(next(iter(batch.values())))
    if isinstance(batch, list | tuple) and batch:
        return _batch_size(batch[0])
    raise ConfigError(
        "batch",
        "a tensor, or a list or mapping of them",
        type(batch).__name__,
        "pass optimizer.step(weight=n)",
    )
