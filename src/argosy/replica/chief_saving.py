"""Checkpoints of a training that has no servers: written by the chief itself, in the background."""

from __future__ import annotations

import time
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
from argosy.update.cuts import Cuts


class ChiefSaving:
    """The chief's. Raises ConfigError if the directory cannot be written to, or is another job's."""

    def __init__(self, training: Training, keeping: Keeping, mode: Mode, state: TorchState) -> None:
        self._training = training
        self._mode = mode
        self._state = state
        self._archive = Archive(Path(keeping.directory), keeping.keep)
        self._writer = ShardWriter(self._archive.directory, "shard-0-of-1.safetensors")
        self._keeping = keeping
        self._log = SaveLog()
        self._replicas: dict[int, bytes] | None = None  # each replica's own state at the latest cut
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
        self.cuts = Cuts(self._keeping.save_every, resumed.step)
        return resumed, replicas

    def after_step(self, step: int) -> None:
        """See to what is due after a step."""
        self.advance()
        if self.cuts.take(step):
            self._cut(step)

    def cut(self, step: int, stand_in: dict[int, bytes]) -> None:
        """Cut now, where all replicas do; `stand_in`: the states of a cut before it that nobody gave any."""
        self.settle(stand_in)
        self.cuts.ask(step - 1)
        if self.cuts.take(step):
            self._cut(step)

    def begin_final(self, step: int) -> None:
        """The last cut."""
        self._cut(step)

    def give_states(self, states: dict[int, bytes]) -> None:
        """Every replica's own state, for the cut that waits for them."""
        self._replicas = states

    @property
    def wants_states(self) -> bool:
        """Whether a cut waits for the replicas' own states."""
        return self._archive.busy and self._replicas is None

    def _cut(self, step: int) -> None:
        self._replicas = None
        entries = self._state.copy()
        index = Index(
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
        self._archive.begin(index, 1)
        self._writer.write(step, lambda: entries)

    def advance(self) -> None:
        """See what has been written in the background."""
        if (result := self._writer.result()) is not None:
            self._archive.collect(0, *result)
        if self._archive.complete and self._replicas is not None:
            self._archive.publish(self._replicas)
        if (outcome := self._archive.poll()) is not None:
            self._latest = outcome
            self._log.tell(outcome)
            self.cuts.written(saved=not outcome.error)

    def finish(self, step: int, states: dict[int, bytes]) -> None:
        """Save the final state, unless it is, and wait for it. Raises SaveFailed."""
        self.settle(states)
        if self.cuts.finish(step):
            self._cut(step)
            self.settle(states)
        self.check()

    def check(self) -> None:
        """Raise SaveFailed if the latest save failed: at the end, when no other follows."""
        if self._latest is not None and (failure := self._latest.failure) is not None:
            raise failure

    def settle(self, states: dict[int, bytes] | None = None) -> None:
        """Wait until all is written; `states`: for a cut that still waits for them."""
        if states is not None and self.wants_states:
            self.give_states(states)
        self._writer.wait()
        self.advance()
        self._archive.wait()
        self.advance()

    def close(self) -> None:
        """Let others into the directory."""
        self._log.finish()
        self._writer.close()
        self._archive.close()
