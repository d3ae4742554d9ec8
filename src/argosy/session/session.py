"""A session: starts from the chief's parameters or a checkpoint, hands out batches, leaves cleanly."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from argosy.errors import ConfigError
from argosy.events import say
from argosy.hooks.hook import Hook, Hooks
from argosy.modes import Sync
from argosy.replica.exchange import Training, Verdict
from argosy.replica.optimizer import DistributedOptimizer
from argosy.replica.signals import Signals
from argosy.session import state as own
from argosy.session.feed import Feed, Resuming
from argosy.session.state import ReplicaState, Stateful

if TYPE_CHECKING:
    from argosy.replica.replica import Replica

T = TypeVar("T")
LOG_EVERY = 10.0
# A worker that was told to end makes so many more steps: if all were told, the chief's word ends all at once.
_LAST_STEPS = 2


class Session:
    """Made by `replica.session(...)`; a context manager."""

    def __init__(
        self,
        replica: Replica,
        optimizer: DistributedOptimizer,
        training: Training,
        hooks: Sequence[Hook] = (),
        state: Mapping[str, Stateful] | None = None,
    ) -> None:
        if not isinstance(optimizer, DistributedOptimizer):
            raise ConfigError(
                "optimizer", "what replica.distribute() gave", type(optimizer).__name__, "distribute it first"
            )
        self.replica = replica
        self.optimizer = optimizer
        self.logged: dict[str, Any] = {}  # what `log` was last given
        self._training = dataclasses.replace(training, state=self._state)
        self._kept = dict(state or {})
        self._weighted = isinstance(replica.mode, Sync) and replica.mode.weighted
        self._logged_at = time.monotonic()
        self._logged_step = 0
        self._feed = Feed()
        self._hooks = Hooks(self, hooks)
        self._signals = Signals(self._on_signal)
        self._stop_after: int | None = None

    # --- beginning and end --------------------------------------------------------------------------------
    def __enter__(self) -> Session:
        verdict = self.optimizer.start(self._training)
        if self.optimizer.resumed.state:
            self._resume(own.decode(self.optimizer.resumed.state))
        self._logged_at, self._logged_step = time.monotonic(), verdict.global_step
        if verdict.stop:
            say(f"step {verdict.global_step} is reached already: nothing is left to train")
        if self._training.keeping is not None:
            self._signals.enter()
        self.optimizer.watcher = self._hooks
        self._hooks.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None and not (isinstance(error, SystemExit) and not error.code):
                self.replica.fail(error)
                self.optimizer.abandon()
                return
            self._hooks.end()
            self.optimizer.finish()
            self.replica.leave()
        finally:
            self._signals.leave()
        if self._signals.received is not None:
            raise SystemExit(128 + self._signals.received)

    def _state(self) -> bytes:
        """This replica's own state, to go on from here."""
        state = ReplicaState(
            own.capture(), self._feed.position, self._feed.pass_random, own.gather(self._kept)
        )
        return own.encode(state)

    def _resume(self, state: ReplicaState) -> None:
        own.restore(state.random)
        self._feed.resume(state)
        for name, kept in state.kept.items():
            if name in self._kept:
                self._kept[name].load_state_dict(kept)

    # --- how it stands ------------------------------------------------------------------------------------
    @property
    def global_step(self) -> int:
        """The updates of the whole job, as far as this worker knows."""
        return self.optimizer.verdict.global_step

    @property
    def model(self) -> torch.nn.Module | None:
        """What is trained."""
        return self._training.model

    @property
    def directory(self) -> str | None:
        """Where checkpoints are kept."""
        return None if self._training.keeping is None else self._training.keeping.directory

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
        told = self._stop_after is not None and self.global_step >= self._stop_after
        return told or self.optimizer.verdict.stop

    # --- what a loop or a hook may want -------------------------------------------------------------------
    def stop(self) -> None:
        """End the training after this step: for everybody, if this is the chief; else this worker's part."""
        self._stop_after = self.global_step
        if self.replica.is_chief:
            self.optimizer.wish("stop")

    def save(self) -> None:
        """Save a checkpoint soon."""
        self.optimizer.wish("save")

    def skip_step(self) -> None:
        """Keep this step's gradient back, in a hook's `before_step`; holds nobody up."""
        self.optimizer.keep_back = True

    def _on_signal(self) -> bool:
        if self.replica.is_chief:
            self.optimizer.wish("stop")
        else:
            self._stop_after = self.global_step + _LAST_STEPS
        return True

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The model has the moving averages inside, and its own parameters again afterwards."""
        if self._training.average is None:
            raise ConfigError("averaged()", "a session with averages", "none", "session(average=0.999)")
        self.optimizer.pull(average=True)
        try:
            yield
        finally:
            self.optimizer.pull()

    def batches(
        self, loader: Iterable[T], epochs: int | None = None, resume: Resuming = "leave"
    ) -> Iterator[T]:
        """The batches of `loader` until the job should stop, or this worker's data ends.

        A loader that can be iterated again is repeated, `epochs` times or without end; an iterator is used up
        once. When a training is resumed, `replica.loader(...)` goes on where it was; a loader of your own
        begins anew, or with `resume="skip"` is iterated past the batches that were used.
        """
        if epochs is not None and epochs < 0:
            raise ConfigError("epochs", "a number of epochs, 0 or more", epochs)
        if resume not in ("leave", "skip"):
            raise ConfigError("resume", "leave or skip", repr(resume))
        for batch in self._feed.batches(loader, epochs, resume, self._before_batch):
            if self._weighted:
                self.optimizer.batch_weight = float(_batch_size(batch))
            yield batch

    def _before_batch(self) -> bool:
        """What the loop did with the last batch is done: the moment to be resumed from."""
        self.optimizer.give_state()
        return self.should_stop

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
