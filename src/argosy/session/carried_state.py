"""What every push carries where another process may take this one's place: the state its turn began from.

A turn begins with the first batch after the turn before. Of its state only what has changed since the last
push travels, so this costs microseconds: most of it is to look whether a random generator was used.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from ctypes import string_at
from typing import Any

import msgspec
import torch

from argosy.protocol.saving import CarriedState
from argosy.replica.hyperparameters import groups_of
from argosy.replica.optimizer import DistributedOptimizer
from argosy.replica.worker import Worker
from argosy.session import own_state as own
from argosy.session.batch_feed import BatchFeed
from argosy.session.own_state import Position, PythonRandom, Random, ReplicaState, Stateful

# numpy's Mersenne Twister in memory: 624 words and the place among them.
_MT19937_BYTES = 625 * 4


class StateCarrier:
    """Of one session."""

    def __init__(
        self,
        replica: Worker,
        optimizer: DistributedOptimizer,
        feed: BatchFeed,
        kept: Mapping[str, Stateful],
    ) -> None:
        feed.keeps_passes = True
        self._replica = replica
        self._optimizer = optimizer
        self._feed = feed
        self._kept = kept
        self._between = True  # whether no batch was given since the latest turn
        self._state: dict[str, bytes] | None = None  # what the next turn begins from
        self._sent: dict[str, bytes] = {}
        self._gathers = self._turns = 0
        self._groups = _GroupsState(optimizer)
        self._python = _PythonState()
        self._numpy = _NumpyState()
        self._pass_random: tuple[Random | None, bytes] = (None, b"")

    def take_place(self, carried: CarriedState) -> None:
        """Go on exactly where the process stood whose place this one takes, from the first batch on."""
        state = state_from(carried.parts, self._replica.index)

        def arrive() -> None:
            own.load(self._kept, state.kept)
            self._optimizer.take_groups(state.groups)
            self._replica.skip_gathers(carried.gathers)
            own.restore(state.random)

        self._feed.take_place(state, arrive)

    def before_batch(self) -> None:
        """What the loop did with the last batch is done. In the middle of an accumulation this is no place to
        go on from.
        """
        if self._between:
            self._state = self._capture()
            self._gathers, self._turns = self._replica.gathers, 0

    def gave_batch(self) -> None:
        """The loop gets a batch."""
        self._between = False

    def turn(self, pushed: bool) -> CarriedState | None:
        """A turn is made: what its push carries. `pushed` False: the process before has made it already."""
        self._between = True
        state = self._state
        if state is None:
            return None
        if not pushed:
            self._turns += 1
            return None
        self._state = None
        sent = self._sent
        changed = {name: part for name, part in state.items() if sent.get(name) != part}
        self._sent = state
        return CarriedState(changed, self._gathers, self._turns)

    def _capture(self) -> dict[str, bytes]:
        feed, encode = self._feed, msgspec.msgpack.encode
        if feed.pass_random is not self._pass_random[0]:
            self._pass_random = feed.pass_random, encode(feed.pass_random)
        cuda = torch.cuda.is_initialized()
        return {
            "torch": torch.get_rng_state().numpy().tobytes(),
            "python": self._python.now(),
            "numpy": self._numpy.now(),
            "cuda": encode(own.capture().cuda) if cuda else b"",
            "position": encode(feed.position),
            "groups": self._groups.now(),
            "pass": self._pass_random[1],
            "kept": own.encode_kept(self._kept) if self._kept else b"",
        }


def state_from(parts: Mapping[str, bytes], replica: int) -> ReplicaState:
    """What the pushes of a process before have carried."""

    def part(name: str, kind: Any, otherwise: Any) -> Any:
        return own.decode_part(parts[name], kind) if parts.get(name) else otherwise

    return ReplicaState(
        Random(
            parts["torch"],
            part("python", PythonRandom, None),
            part("cuda", tuple[bytes, ...], ()),
            part("numpy", own.NumpyRandom, None),
        ),
        part("position", Position, Position()),
        part("groups", list[dict[str, Any]], []),
        part("pass", Random | None, None),
        part("kept", dict[str, Any], {}),
        replica,
    )


class _GroupsState:
    """The hyperparameters, encoded when they have changed."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._seen: list[list[Any]] = []
        self._encoded = b""

    def now(self) -> bytes:
        seen = [list(group.values()) for group in self._optimizer.param_groups]
        if not self._seen or seen != self._seen:
            self._encoded = msgspec.msgpack.encode(groups_of(self._optimizer))
            # A tensor may change and stay the same object: then there is nothing to compare with.
            mutable = any(isinstance(value, torch.Tensor) for values in seen for value in values)
            self._seen = [] if mutable else seen
        return self._encoded


class _PythonState:
    """The state of `random`, encoded when it has changed."""

    def __init__(self) -> None:
        self._seen: tuple[Any, ...] = ()
        self._encoded = b""

    def now(self) -> bytes:
        state = random.getstate()
        words = state[1]
        # Each number that is drawn moves the place, which comes last, or makes all words anew.
        seen = (words[-1], words[:4], state[2])
        if seen != self._seen:
            self._seen, self._encoded = seen, msgspec.msgpack.encode(state)
        return self._encoded


class _NumpyState:
    """The state of `numpy.random`, encoded when it has changed; to ask numpy for it takes long."""

    def __init__(self) -> None:
        self._seen = b""
        self._encoded = b""
        self._second = False  # whether a second normal number lies ready, which leaves the rest as it is

    def now(self) -> bytes:
        module = sys.modules.get("numpy.random")
        if module is None:  # nobody draws from what is not imported
            return b""
        generator = module.get_bit_generator()
        known = type(generator).__name__ == "MT19937"
        seen = string_at(generator.ctypes.state_address, _MT19937_BYTES) if known else b""
        if seen != self._seen or self._second or not known:
            state = own.numpy_state()
            self._seen, self._encoded = seen, msgspec.msgpack.encode(state)
            self._second = state is not None and bool(state[3])
        return self._encoded
