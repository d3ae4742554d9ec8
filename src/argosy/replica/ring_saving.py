"""Checkpoints of a ring: the chief writes them, and every replica adds its own state.

All replicas have the same parameters, and make the same steps. When to save they know by counting, or are
told along with a round of the ring; so all of them cut after the same step. Their own states reach the chief
through the store.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import msgspec

from argosy.checkpoint import folder
from argosy.checkpoint.tensor_reader import Checkpoint
from argosy.errors import CheckpointDamaged, ConfigError
from argosy.modes import Ring
from argosy.replica.chief_saving import ChiefSaving
from argosy.replica.exchange import Keeping, Resumed, Training
from argosy.replica.torch_state import TorchState
from argosy.ring.member import RingMember
from argosy.update.checkpoints import Checkpoints

# A replica that has left the ring gives no state: the others are not held up for it.
_STATES_WITHIN = 5.0
_SEEN_BY_ALL = "one that every replica of the ring can read"


class RingSaving:
    """One replica's part."""

    def __init__(self, training: Training, keeping: Keeping, state: TorchState, member: RingMember) -> None:
        self._keeping = keeping
        self._state = state
        self._member = member
        self._saving: ChiefSaving | None = None
        if member.rank == 0:
            self._saving = ChiefSaving(
                training, keeping, Ring(), state, member.group.size, self._collect, _STATES_WITHIN
            )
        self._cut: int | None = None  # the step that waits for this replica's state

    def begin(self, scales_alike: bool) -> Resumed:
        """Go on from the newest checkpoint, if there is one, all of them from the same."""
        found = b""
        if self._saving is not None:
            resumed, replicas = self._saving.begin()
            path = "" if self._saving.restored is None else str(self._saving.restored)
            found = msgspec.msgpack.encode((path, resumed.step, replicas, resumed.groups))
        path, step, states, groups = msgspec.msgpack.decode(
            self._member.gather(found)[0],
            type=tuple[str, int, dict[int, bytes], tuple[dict[str, object], ...] | None],
        )
        if self._saving is None:
            if not folder.is_written_to(Path(self._keeping.directory)):
                got = f"{self._keeping.directory}, which is not the chief's"
                raise ConfigError("directory", _SEEN_BY_ALL, got)
            try:
                if path:
                    self._state.restore(Checkpoint(Path(path)))
            except CheckpointDamaged as error:
                raise ConfigError("directory", _SEEN_BY_ALL, error) from None
        chiefs = states.get(0, b"")
        own = states.get(self._member.rank) or chiefs
        return Resumed(step, own, groups, chiefs if scales_alike else b"")

    def after_step(self, step: int, wanted: bool) -> None:
        """Cut, if it is time, or `wanted`; every replica comes to the same answer."""
        every = self._keeping.save_every
        if wanted or (every is not None and step % every == 0):
            self._cut = step
            if self._saving is not None:
                self._saving.cut(step)
        if self._saving is not None:
            self._saving.advance()

    def give_state(self, state: Callable[[], bytes]) -> None:
        """This replica's state, if the latest cut waits for it."""
        if self._saving is not None:
            self._saving.give_state(state)
        elif self._cut is not None:
            step, self._cut = self._cut, None
            self._member.tell(_key(step), base64.b64encode(state()).decode())

    def _collect(self, checkpoints: Checkpoints) -> None:
        """On the chief: what the others have told of their states."""
        key = _key(checkpoints.latest)
        for worker in range(1, self._member.group.size):
            if checkpoints.wants(worker) and (told := self._member.told_by(worker, key)) is not None:
                checkpoints.give(worker, base64.b64decode(told), checkpoints.latest)
                self._member.forget(worker, key)

    def finish(self, step: int, state: Callable[[], bytes]) -> None:
        """The chief saves the final state, unless it is saved. Raises SaveFailed there."""
        if self._saving is not None:
            self._saving.finish(step, state)
            return
        self.give_state(state)
        self._cut = step
        self.give_state(state)

    def close(self) -> None:
        """Let others into the directory."""
        if self._saving is not None:
            self._saving.close()


def _key(step: int) -> str:
    return f"state/{step}"
