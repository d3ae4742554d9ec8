"""Checkpoints of a ring: the chief writes them, and every replica adds its own state.

All replicas have the same parameters, and make the same steps. What they must agree on beside that, when to
save and when to stop, the chief writes into the directory, which all of them see: a note for the step after
the next. Nobody can have passed that step, because the next one needs the chief, who has written before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from argosy.checkpoint import disk
from argosy.checkpoint.archive import describe
from argosy.checkpoint.tensor_reader import Checkpoint
from argosy.errors import CheckpointDamaged, ConfigError
from argosy.events import say
from argosy.modes import Ring
from argosy.replica.chief_saving import ChiefSaving
from argosy.replica.exchange import Keeping, Resumed, Training
from argosy.replica.torch_state import TorchState

# A replica that has left the ring gives no state: the others are not held up for it.
_STATES_WITHIN = 5.0
_NOTES = ".ring"
_OLD_NOTES = ".ring-old"
_SEEN_BY_ALL = "one that every replica of the ring sees"


class RingSaving:
    """One replica's part. `gather` gives a value to all replicas, and all of theirs."""

    def __init__(
        self,
        training: Training,
        keeping: Keeping,
        state: TorchState,
        rank: int,
        count: int,
        gather: Callable[[bytes], Sequence[bytes]],
    ) -> None:
        self._keeping = keeping
        self._state = state
        self._rank = rank
        self._count = count
        self._gather = gather
        self._notes = Path(keeping.directory) / _NOTES
        self._saving = ChiefSaving(training, keeping, Ring(), state) if rank == 0 else None
        self._cut: int | None = None  # the step that waits for the replicas' own states
        self._mine = b""
        self._until = 0.0

    def begin(self) -> Resumed:
        """Go on from the newest checkpoint, if there is one, all of them from the same."""
        found = b""
        if self._saving is not None:
            self._tidy()
            resumed, replicas = self._saving.begin()
            path = "" if self._saving.restored is None else str(self._saving.restored)
            found = msgspec.msgpack.encode((path, resumed.step, replicas, resumed.groups))
        path, step, states, groups = msgspec.msgpack.decode(
            self._gather(found)[0],
            type=tuple[str, int, dict[int, bytes], tuple[dict[str, object], ...] | None],
        )
        if self._saving is None:
            if not self._notes.is_dir():  # the chief has made it
                raise ConfigError(
                    "directory", _SEEN_BY_ALL, f"{self._notes.parent}, which is not the chief's"
                )
            try:
                if path:
                    self._state.restore(Checkpoint(Path(path)))
            except CheckpointDamaged as error:
                raise ConfigError("directory", _SEEN_BY_ALL, error) from None
        return Resumed(step, states.get(self._rank) or states.get(0, b""), groups)

    def _tidy(self) -> None:
        self._remove_notes()
        disk.make_folder(self._notes)

    def _remove_notes(self) -> None:
        """Out of the others' way first: nobody adds one while they are removed."""
        old = self._notes.with_name(_OLD_NOTES)
        disk.remove_folder(old)
        if self._notes.is_dir():
            self._notes.rename(old)
            disk.remove_folder(old)

    # --- after each step ----------------------------------------------------------------------------------
    def after_step(self, step: int) -> None:
        """Cut, if it is time; every replica comes to the same answer."""
        every = self._keeping.save_every
        if (every is not None and step % every == 0) or self._noted("save") == step:
            self._begin_cut(step)
        if self._saving is not None:
            self._saving.advance()

    def _begin_cut(self, step: int) -> None:
        self._cut = step
        self._mine = b""
        self._until = time.monotonic() + _STATES_WITHIN
        if self._saving is not None:
            self._saving.cut(step, {0: b""})

    def give_state(self, state: Callable[[], bytes]) -> None:
        """The replica's own state for the latest cut; the chief collects all of them."""
        if self._cut is None:
            return
        self._mine = self._mine or state()
        if self._saving is None:
            try:
                self._write(f"state-{self._cut}-{self._rank}", self._mine)
            except FileNotFoundError:
                pass  # the chief has left, and saves no more
            except OSError as error:  # a full disk does not end a training
                say(f"CANNOT SAVE this worker's own state at step {self._cut}: {describe(error)}")
            self._cut = None
            return
        states = self._collected(self._cut)
        if len(states) == self._count or time.monotonic() > self._until:
            self._saving.give_states(states)
            for worker in range(1, self._count):
                disk.remove_file(self._notes / f"state-{self._cut}-{worker}")
            self._cut = None

    def _collected(self, step: int) -> dict[int, bytes]:
        found = {0: self._mine}
        for worker in range(1, self._count):
            path = self._notes / f"state-{step}-{worker}"
            if path.exists():
                found[worker] = path.read_bytes()
        return found

    # --- what the chief wants of all ----------------------------------------------------------------------
    def wish(self, what: str, step: int) -> None:
        """Save, or stop, after the step after the next."""
        if self._saving is None:
            return
        try:
            self._write(what, str(step + 2).encode())
        except OSError as error:
            if what != "save":
                raise
            say(f"CANNOT SAVE step {step + 2} in {self._keeping.directory}: {describe(error)}")

    def stops_at(self) -> int | None:
        """The step after which all stop, if the chief has said one."""
        return self._noted("stop")

    def _noted(self, what: str) -> int | None:
        try:
            return int((self._notes / what).read_bytes())
        except (OSError, ValueError):
            return None

    def _write(self, name: str, data: bytes) -> None:
        whole = self._notes / f".{name}-{self._rank}"
        whole.write_bytes(data)
        whole.rename(self._notes / name)

    # --- the end ------------------------------------------------------------------------------------------
    def finish(self, step: int, state: Callable[[], bytes]) -> None:
        """The chief saves the final state, unless it is saved. Raises SaveFailed there."""
        if self._saving is None:
            if self._cut is None:
                self._cut, self._mine = step, b""
            self.give_state(state)
            return
        self._wait_for_states(state)
        self._saving.settle()
        if self._saving.cuts.finish(step):
            self._saving.begin_final(step)
            self._cut, self._mine, self._until = step, b"", time.monotonic() + _STATES_WITHIN
            self._wait_for_states(state)
            self._saving.settle()
        self._saving.check()

    def _wait_for_states(self, state: Callable[[], bytes]) -> None:
        while self._cut is not None:
            self.give_state(state)
            time.sleep(0.002)

    def close(self) -> None:
        """Let others into the directory."""
        if self._saving is not None:
            self._remove_notes()
            self._saving.close()
