"""A session: starts from the chief's parameters or a checkpoint, hands out batches, leaves cleanly."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch

from argosy.cluster.settings import STATUS_FILE
from argosy.cluster.stop_signals import StopSignals
from argosy.errors import ConfigError, SaveFailed
from argosy.events import say
from argosy.modes import Sync
from argosy.observe.lines import numbers_text, step_text
from argosy.observe.watch import Watch
from argosy.replica.exchange import Training, Verdict
from argosy.replica.hyperparameters import groups_of
from argosy.replica.optimizer import DistributedOptimizer
from argosy.replica.worker import Worker
from argosy.session import own_state as own
from argosy.session.batch_checksum import BatchChecksum
from argosy.session.batch_feed import BatchFeed, Resuming
from argosy.session.carried_state import StateCarrier
from argosy.session.hook import Hook, Hooks
from argosy.session.own_state import ReplicaState, Stateful
from argosy.session.reporting import Reporting, number

T = TypeVar("T")
LOG_EVERY = 10.0
# A worker that was told to end makes so many more steps: if all were told, the chief's word ends all at once.
_LAST_STEPS = 4


class Session:
    """Made by `replica.session(...)`; a context manager."""

    def __init__(
        self,
        replica: Worker,
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
        self.noted: tuple[int, dict[str, Any]] = (0, {})  # what `log` was last given, and at which step
        self._kept = dict(state or {})
        keeping = training.keeping
        self.directory = None if keeping is None else Path(keeping.directory)  # where checkpoints are kept
        self._reporting = Reporting(self, self.directory)
        self._first_batches = BatchChecksum()
        self._training = dataclasses.replace(
            training, state=self._state, numbers=self._reporting.due, batches=self._first_batches.used
        )
        self._says_steps = STATUS_FILE not in os.environ and not any(hook.says_steps for hook in hooks)
        self._weighted = isinstance(replica.mode, Sync) and replica.mode.weighted
        self._logged_at = time.monotonic()
        self._logged_step = 0
        self._feed = BatchFeed()
        self._carrier: StateCarrier | None = None
        if replica.is_replaceable:
            self._carrier = StateCarrier(replica, optimizer, self._feed, self._kept)
            self._training = dataclasses.replace(self._training, carried=self._carrier.turn)
        self._hooks = Hooks(self, hooks)
        self._signals = StopSignals(self._on_signal)
        self._stop_after: int | None = None
        self._says_no_end = False

    # --- beginning and end --------------------------------------------------------------------------------
    def __enter__(self) -> Session:
        self.replica.calls.begin_session(self.optimizer.stepped)
        try:
            verdict = self.optimizer.start(self._training)
        except BaseException:
            self.replica.calls.end_session()
            raise
        if self._carrier is not None and (carried := self.optimizer.resumed.carried) is not None:
            self._carrier.take_place(carried)
            say(f"takes the place of a process that was lost, at step {verdict.global_step}")
        elif self.optimizer.resumed.state:
            self._resume(own.decode(self.optimizer.resumed.state))
        self._training.loads.watch(self._training.model)
        self._logged_at, self._logged_step = time.monotonic(), verdict.global_step
        if verdict.stop:
            say(f"step {verdict.global_step} is reached already: nothing is left to train")
        if self._training.keeping is not None:
            self._signals.enter()
        self.optimizer.watcher = self._hooks
        self._reporting.begin()
        try:
            self._hooks.begin()
        except BaseException as error:  # nobody calls __exit__ then
            self._fail(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not (isinstance(error, SystemExit) and not error.code):
            self._signals.leave()
            self._fail(error)
            return
        try:
            self._hooks.end()
            self._reporting.share_last()
            with self._training.loads.kept():
                self.optimizer.finish()
        except BaseException as late:
            self._reporting.end(late)
            if isinstance(late, SaveFailed):  # what is wrong is the disk: nobody else's training ends for it
                self.replica.leave()
            raise
        finally:
            self._signals.leave()
            self._training.loads.close()
        self._reporting.end(None)
        self.replica.calls.end_session()
        self.replica.leave()
        if self._signals.received is not None:
            raise SystemExit(128 + self._signals.received)

    def _fail(self, error: BaseException) -> None:
        self._reporting.end(error)
        self._training.loads.close()
        self.replica.calls.end_session()
        self.replica.fail(error)
        self.optimizer.abandon()

    def _state(self) -> bytes:
        """This replica's own state, to go on from here."""
        feed = self._feed
        groups = groups_of(self.optimizer)
        kept, me = own.gather(self._kept), self.replica.index
        state = ReplicaState(own.capture(), feed.position, groups, feed.pass_random, kept, me)
        return own.encode(state)

    def _resume(self, state: ReplicaState) -> None:
        if state.replica in (-1, self.replica.index):
            own.restore(state.random)
        else:  # there are more replicas than before: the chief's place, but not the chief's random numbers
            state.pass_random = None
        self._feed.resume(state)
        if self._training.hyperparameters == "checkpoint":
            self.optimizer.take_groups(state.groups)
        if self.optimizer.resumed.chiefs:
            self._scale_alike(state, own.decode(self.optimizer.resumed.chiefs))
        own.load(self._kept, state.kept)

    def _scale_alike(self, state: ReplicaState, chiefs: ReplicaState) -> None:
        """With servers each replica has a loss scale of its own; the ring averages what is scaled."""
        for name, each in self._kept.items():
            if isinstance(each, torch.amp.GradScaler) and name in chiefs.kept:
                state.kept[name] = chiefs.kept[name]

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
        if epochs is None and not isinstance(loader, Iterator):
            self._announce_no_end()
        for batch in self._feed.batches(loader, epochs, resume, self._before_batch):
            self._first_batches.saw(batch)
            if self._carrier is not None:
                self._carrier.gave_batch()
            if self._weighted:
                self.optimizer.batch_weight = float(_batch_size(batch))
            yield batch

    def _announce_no_end(self) -> None:
        """Once, by the chief: nothing that a session knows of ends this training."""
        known = self.last_step is not None or self._hooks.ends_training
        if not known and self.replica.is_chief and not self._says_no_end:
            self._says_no_end = True
            say("trains without end: there is no last_step, and batches() repeats its loader; Ctrl-C ends it")

    def _before_batch(self) -> bool:
        """What the loop did with the last batch is done: the moment to be resumed from."""
        self.optimizer.give_state()
        if self._carrier is not None:
            self._carrier.before_batch()
        return self.should_stop

    def log(self, **values: Any) -> None:
        """Numbers of this step. A tensor's value is read only when it is shown, once a second or so."""
        self.noted = self.global_step, values
        now = time.monotonic()
        if now - self._logged_at < LOG_EVERY:
            return
        rate = (self.global_step - self._logged_step) / (now - self._logged_at)
        self._logged_at, self._logged_step = now, self.global_step
        if self.replica.is_chief and self._says_steps:
            numbers = numbers_text(self.numbers())
            say(f"{step_text(self.global_step, self.last_step)}{numbers}  {rate:6.1f} steps/s")

    @property
    def logged(self) -> dict[str, Any]:
        """What `log` was last given."""
        return self.noted[1]

    def numbers(self, *names: str) -> dict[str, float]:
        """What `log` was last given, or of that only these names, as plain numbers."""
        logged = self.logged
        return {name: number(name, logged[name]) for name in (names or logged) if name in logged}

    @property
    def watch(self) -> Watch:
        """The job as the servers see it: `session.watch.start()`, then `session.watch.latest`."""
        return self._reporting.watch

    def record(self, kind: str, /, **fields: Any) -> None:
        """Note an event in DIRECTORY/events.jsonl: on the chief of a session with a directory."""
        self._reporting.record(kind, **fields)


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
