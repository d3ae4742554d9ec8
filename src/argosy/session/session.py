"""A session: starts from the chief's parameters, hands out batches until the job ends, leaves cleanly."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from argosy.errors import ConfigError
from argosy.events import say
from argosy.hooks.hook import Hook, Hooks
from argosy.modes import Sync
from argosy.replica.exchange import Training, Verdict
from argosy.replica.optimizer import DistributedOptimizer

if TYPE_CHECKING:
    from argosy.replica.replica import Replica

T = TypeVar("T")
LOG_EVERY = 10.0


class Session:
    """Made by `replica.session(...)`; a context manager."""

    def __init__(
        self,
        replica: Replica,
        optimizer: DistributedOptimizer,
        training: Training,
        hooks: Sequence[Hook] = (),
    ) -> None:
        if not isinstance(optimizer, DistributedOptimizer):
            raise ConfigError(
                "optimizer", "what replica.distribute() gave", type(optimizer).__name__, "distribute it first"
            )
        self.replica = replica
        self.optimizer = optimizer
        self.logged: dict[str, Any] = {}  # what `log` was last given
        self._stopping = False
        self._hooks = Hooks(self, hooks)
        self._training = training
        self._weighted = isinstance(replica.mode, Sync) and replica.mode.weighted
        self._logged_at = time.monotonic()
        self._logged_step = 0

    def __enter__(self) -> Session:
        verdict = self.optimizer.start(self._training)
        self._logged_at, self._logged_step = time.monotonic(), verdict.global_step
        if verdict.stop:
            say(f"step {verdict.global_step} is reached already: nothing is left to train")
        self.optimizer.watcher = self._hooks
        self._hooks.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            self.replica.fail(error)
            return
        self._hooks.end()
        self.optimizer.finish()
        self.replica.leave()

    @property
    def global_step(self) -> int:
        """The updates of the whole job, as far as this worker knows."""
        return self.optimizer.verdict.global_step

    @property
    def model(self) -> torch.nn.Module | None:
        """What is trained."""
        return self._training.model

    @property
    def last_step(self) -> int | None:
        """The update at which the job ends."""
        return self._training.last_step

    @property
    def verdict(self) -> Verdict:
        """What became of the latest gradient."""
        return self.optimizer.verdict

    @property
    def should_stop(self) -> bool:
        """Whether the job has reached its last step, or was told to stop."""
        return self._stopping or self.optimizer.verdict.stop

    def stop(self) -> None:
        """End the training after this step."""
        self._stopping = True

    def skip_step(self) -> None:
        """Keep this step's gradient back, in a hook's `before_step`; holds nobody up."""
        self.optimizer.keep_back = True

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
                    self.optimizer.batch_weight = float(_batch_size(batch))
                yield batch
            if self.should_stop or empty or iterator is loader:
                return

    def log(self, **values: Any) -> None:
        """Numbers of this step. A tensor's value is read only when a line is due, every few seconds."""
        self.logged = values
        now = time.monotonic()
        if now - self._logged_at < LOG_EVERY:
            return
        rate = (self.global_step - self._logged_step) / (now - self._logged_at)
        self._logged_at, self._logged_step = now, self.global_step
        numbers = "".join(f", {name} {_number(value):.4g}" for name, value in values.items())
        if self.replica.is_chief:
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
