"""Checkpoints of a training that has no servers: written by the chief itself, in the background."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from argosy.checkpoint.archive import Archive, SaveOutcome, versions
from argosy.checkpoint.index import Index
from argosy.checkpoint.save_log import SaveLog
from argosy.checkpoint.shard_writer import ShardWriter
from argosy.checkpoint.tensor_reader import Checkpoint
from argosy.errors import ArgosyError
from argosy.events import say
from argosy.modes import Mode
from argosy.replica.exchange import Keeping, Resumed, Training, tied_names
from argosy.replica.torch_state import TorchState
from argosy.update.checkpoints import Checkpoints

_LOOK = 0.002


class ChiefSaving:
    """The chief's. Raises ConfigError if the directory cannot be written to, or is another job's.

    Of so many `replicas`; `collect` gives the checkpoint at hand what those have told of their states, for
    which it waits `patience` seconds.
    """

    def __init__(
        self,
        training: Training,
        keeping: Keeping,
        mode: Mode,
        state: TorchState,
        replicas: int = 1,
        collect: Callable[[Checkpoints], None] = lambda checkpoints: None,
        patience: float = math.inf,
    ) -> None:
        self._training = training
        self._mode = mode
        self._state = state
        self._archive = Archive(Path(keeping.directory), keeping.keep)
        self._writer = ShardWriter(self._archive.directory, "shard-0-of-1.safetensors")
        self._keeping = keeping
        self._log = SaveLog()
        self._replicas = range(replicas)
        self._collect = collect
        self._patience = patience
        self._index: Index | None = None  # of the checkpoint that is being made
        self._latest: SaveOutcome | None = None
        self.restored: Path | None = None  # what the training goes on from

    def begin(self) -> tuple[Resumed, dict[int, bytes]]:
        """Go on from the newest checkpoint, if there is one; also every replica's own state in it."""
        found = self._archive.newest(say)
        resumed, replicas = Resumed(), dict[int, bytes]()
        if found is not None:
            path, index = found
            try:
                self._state.restore(Checkpoint(path, index))
            except ArgosyError:
                self.close()
                raise
            self.restored, replicas = path, index.replicas
            resumed = Resumed(index.step, replicas.get(0, b""), index.optimizer.groups)
            say(f"goes on from step {index.step}: {path}")
        else:
            say(f"begins at step 0: no checkpoint in {self._archive.directory}")
            if self._training.initial is not None:
                self._training.initial()
        self.checkpoints = Checkpoints(self._keeping.save_every, resumed.step, patience=self._patience)
        return resumed, replicas

    def after_step(self, step: int) -> None:
        """See to what is due after a step."""
        self.advance()
        if self.checkpoints.take(step, self._replicas):
            self._cut(step)

    def cut(self, step: int) -> None:
        """Cut now, where all replicas do. States that the cut before it still waits for are too late."""
        self.checkpoints.stop_waiting()
        self.settle()
        self.checkpoints.ask(step - 1)
        if self.checkpoints.take(step, self._replicas):
            self._cut(step)

    def _cut(self, step: int) -> None:
        entries = self._state.copy()
        self._index = Index(
            step=step,
            mode=msgspec.to_builtins(self._mode),
            time=time.time(),
            parameters=self._state.parameters(),
            optimizer=self._state.optimizer(),
            shards=(),
            buffers=tuple(self._state.buffers()),
            tied=tied_names(self._training.model),
            average=self._training.average,
            versions=versions(),
        )
        self._archive.begin()
        self._writer.write(step, lambda: entries)

    def advance(self) -> None:
        """See what has been written in the background."""
        if self.checkpoints.busy:
            self._collect(self.checkpoints)
        if (result := self._writer.result()) is not None:
            self.checkpoints.file(0, *result)
        contents = self.checkpoints.ready(self._replicas, time.monotonic())
        if contents is not None and self._index is not None:
            self._archive.publish(self._index, contents.files, contents.replicas, contents.errors)
        if (outcome := self._archive.poll()) is not None:
            self._latest = outcome
            self._log.tell(outcome)
            self.checkpoints.written(saved=not outcome.error)

    def give_state(self, state: Callable[[], bytes]) -> None:
        """The chief's own state, if it is wanted."""
        if self.checkpoints.wants(0):
            self.checkpoints.give(0, state(), self.checkpoints.latest)

    def finish(self, step: int, state: Callable[[], bytes]) -> None:
        """Save the final state, unless it is, and wait for it. Raises SaveFailed."""
        self.give_state(state)
        self.settle()
        if self.checkpoints.finish(step, self._replicas):
            self._cut(step)
            self.give_state(state)
            self.settle()
        self.check()

    def check(self) -> None:
        """Raise SaveFailed if the latest save failed: at the end, when no other follows."""
        if self._latest is not None and (failure := self._latest.failure) is not None:
            raise failure

    def settle(self) -> None:
        """Wait until nothing is being saved."""
        while self.checkpoints.busy:
            self._writer.wait()
            self.advance()
            self._archive.wait()
            self.advance()
            if self.checkpoints.busy:  # it waits for the states of others
                time.sleep(_LOOK)

    def close(self) -> None:
        """Let others into the directory."""
        self._log.finish()
        self._writer.close()
        self._archive.close()
