"""A replica's own state: its random generators, its place in its data, and what the user wants kept.

Plain data, no pickle: it travels with a push, and lies in the index of a checkpoint.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec
import torch

from argosy.errors import UNDECODABLE, CheckpointDamaged, ConfigError
from argosy.wire.tensor_bytes import bytes_of

T = TypeVar("T")


class Stateful(Protocol):
    """What has a state that can be kept, such as a scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """Its state, in plain values."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Take it back."""


class Position(msgspec.Struct):
    """How far the data is used: `batch` batches of pass `epoch` in call `call` of `batches`.

    `passes`: those that began before this one, in all calls; the epoch of a replica's own loader.

    `batch_size` and `count`: of the loader, so that another number of replicas finds its place.
    """

    call: int = 0
    epoch: int = 0
    batch: int = 0
    passes: int = 0
    batch_size: int = 1
    count: int = 1


PythonRandom: TypeAlias = tuple[int, tuple[int, ...], float | None]
NumpyRandom: TypeAlias = tuple[str, bytes, int, int, float]


class Random(msgspec.Struct):
    """The states of the random generators."""

    torch: bytes
    python: PythonRandom
    cuda: tuple[bytes, ...] = ()
    numpy: NumpyRandom | None = None


class ReplicaState(msgspec.Struct):
    """All of it. `groups`: the optimizer's hyperparameters, as a scheduler has left them after the step.

    `replica`: whose it is; a checkpoint from before this was noted says -1, which is the reader's own.

    `pass_random`: the generators when the pass began, if the user's loader is to be skipped.
    """

    random: Random
    position: Position
    groups: list[dict[str, Any]] = []
    pass_random: Random | None = None
    kept: dict[str, Any] = {}
    replica: int = -1


def capture() -> Random:
    """The generators as they are now."""
    cuda: tuple[bytes, ...] = ()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        cuda = tuple(_bytes(state) for state in torch.cuda.get_rng_state_all())
    return Random(_bytes(torch.get_rng_state()), random.getstate(), cuda, numpy_state())


def numpy_state() -> NumpyRandom | None:
    """numpy's generator; None if it is not imported, as nobody draws from it then."""
    if (module := sys.modules.get("numpy.random")) is None:
        return None
    name, keys, *rest = module.get_state()
    return (str(name), keys.tobytes(), *rest)


def restore(state: Random) -> None:
    """Set the generators."""
    torch.set_rng_state(_tensor(state.torch))
    version, keys, gauss = state.python
    random.setstate((version, tuple(keys), gauss))
    if state.cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([_tensor(each) for each in state.cuda[: torch.cuda.device_count()]])
    if state.numpy is not None and (module := sys.modules.get("numpy")) is not None:
        name, keys_, *rest = state.numpy
        module.random.set_state((name, module.frombuffer(keys_, dtype=module.uint32), *rest))


def encode(state: ReplicaState) -> bytes:
    """As bytes; raises ConfigError for what is kept and is not plain."""
    return _encode(state)


def encode_kept(kept: Mapping[str, Stateful]) -> bytes:
    """Only what the user wants kept."""
    return _encode(gather(kept))


def _encode(state: ReplicaState | dict[str, Any]) -> bytes:
    try:
        return msgspec.msgpack.encode(state)
    except (TypeError, OverflowError, ValueError) as error:
        raise ConfigError("state", "objects whose state_dict() holds plain values", error) from None


def decode(data: bytes) -> ReplicaState:
    """From bytes; raises CheckpointDamaged if they are not what was saved."""
    return decode_part(data, ReplicaState)


def decode_part(data: bytes, kind: type[T]) -> T:
    """A part of it."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except UNDECODABLE as error:
        raise CheckpointDamaged("this worker's own state", str(error)) from None


def load(kept: Mapping[str, Stateful], states: Mapping[str, Any]) -> None:
    """Give what the user wants kept its state back."""
    for name, state in states.items():
        if name in kept:
            kept[name].load_state_dict(state)


def gather(kept: Mapping[str, Stateful]) -> dict[str, Any]:
    """The states of what the user wants kept."""
    return {name: each.state_dict() for name, each in kept.items()}


def _bytes(state: torch.Tensor) -> bytes:
    return bytes(bytes_of(state))


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
