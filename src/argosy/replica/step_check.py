"""Whether all replicas of a ring make the same steps: each marks its rounds with what it is about to do.

The mark is one number: how many steps were made, what the round is for, and a checksum of the hyperparameters
and whatever else must be alike. It is made anew only when something has changed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Literal, get_args

import msgspec
import torch

from argosy.errors import ArgosyError, ConfigError
from argosy.replica.hyperparameters import is_plain
from argosy.ring.member import RingMember
from argosy.ring.notes import RoundOutcome
from argosy.store.optimizers import IMPLEMENTATION, disagreement
from argosy.store.same_batches import SameBatches

_BITS = 31
# A round begins a step, ends one that others have skipped, or comes before a group of parameters that joins.
Stage = Literal["begins", "ends", "joins"]
_STAGES: tuple[Stage, ...] = get_args(Stage)


class _Told(msgspec.Struct):
    """What a worker tells when marks differ."""

    step: int
    stage: Stage
    factor: float
    loaded: int
    groups: list[dict[str, Any]]


class StepCheck:
    """One replica's part. `names`: of all workers. `gather`: gives a value to all, and all of theirs."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        names: Sequence[str],
        gather: Callable[[bytes], Sequence[bytes]],
    ) -> None:
        self._optimizer = optimizer
        self._names = names
        self._gather = gather
        self._keys = sorted(optimizer.defaults.keys() - IMPLEMENTATION)  # every group has these
        self._read = itemgetter(*self._keys) if self._keys else lambda group: ()
        self._seen: list[Any] = []
        self._factor = 1.0
        self._loaded = 0
        self._checksum: int = 0
        self._step = 0
        self._stage: Stage = "begins"

    def scaled(self, factor: float) -> None:
        """The mean of the last step was multiplied by this after it was made."""
        if factor != self._factor:
            self._factor = factor
            self._seen = []

    def loaded(self, digest: int) -> None:
        """The script has loaded these values into the model."""
        self._loaded = digest
        self._seen = []

    def mark(self, step: int, stage: Stage) -> int:
        """Of a round."""
        seen = [self._read(group) for group in self._optimizer.param_groups]
        if not self._seen or seen != self._seen:
            groups = self._groups()
            self._checksum = (
                zlib.crc32(msgspec.msgpack.encode((groups, self._factor, self._loaded))) % 2**_BITS
            )
            # A tensor or a list may change and stay the same object: then there is nothing to compare with.
            raw = (group[key] for group in self._optimizer.param_groups for key in self._keys)
            self._seen = [] if any(isinstance(value, torch.Tensor | list) for value in raw) else seen
        self._step, self._stage = step, stage
        place: int = (len(_STAGES) * step + _STAGES.index(stage)) % 2**_BITS
        return place << _BITS | self._checksum

    def _groups(self) -> list[dict[str, Any]]:
        return [
            {key: _plain(group[key]) for key in self._keys if is_plain(group[key])}
            for group in self._optimizer.param_groups
        ]

    def check(self, outcome: RoundOutcome) -> None:
        """Raise on every worker alike if marks differ."""
        if outcome.odd is None:
            return
        first, other = (self._names[rank] for rank in outcome.odd)
        if not outcome.everyone:  # those who have left cannot be asked
            raise ConfigError(
                f"hyperparameters or number of steps of {other} in a step of the ring",
                f"those of {first}",
                "different ones",
                "set the same on every worker",
            )
        mine = _Told(self._step, self._stage, self._factor, self._loaded, self._groups())
        told = [
            msgspec.msgpack.decode(each, type=_Told) for each in self._gather(msgspec.msgpack.encode(mine))
        ]
        raise _difference(first, told[outcome.odd[0]], other, told[outcome.odd[1]])


def _difference(first: str, one: _Told, other: str, two: _Told) -> ArgosyError:
    if len(one.groups) != len(two.groups):
        more, fewer = (first, other) if len(one.groups) > len(two.groups) else (other, first)
        return ArgosyError(
            f"{more} has added a group of parameters, and {fewer} has not, in step {one.step + 1}: call "
            "add_param_group() before the backward pass, in the same step on every worker"
        )
    if (one.step, one.stage) != (two.step, two.stage):
        return ArgosyError(
            f"{other} is {_place(two)} and {first} {_place(one)}: after a backward pass outside of no_sync() "
            "every worker must call step() or skip(), and all must give the same `every`"
        )
    if one.groups != two.groups:
        return disagreement("a step of the ring", first, one.groups, other, two.groups)
    if one.loaded != two.loaded:
        return ConfigError(
            f"what {other} has loaded into the model in the ring",
            f"the same as on {first}",
            "different values",
            "load the same on every worker",
        )
    return ConfigError(
        f"factor of the last gradient of {other} in a step of the ring",
        f"{one.factor}, as on {first}",
        two.factor,
        "use the same loss scale and the same `every` on every worker",
    )


def _place(told: _Told) -> str:
    return f"{'at the end' if told.stage == 'ends' else 'in the middle'} of step {told.step + 1}"


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value)
    return list(value) if isinstance(value, tuple) else value


class BatchCheck:
    """Whether the workers begin with the same batches: told through the store, where nobody waits."""

    def __init__(self, member: RingMember) -> None:
        self._member = member
        self._compares = False

    def after_step(self, digest: int) -> None:
        """A step was made with a gradient of this worker; `digest`: of its first batches, once."""
        if digest:
            self._member.tell("batches", str(digest))
            self._compares = self._member.rank == 0
        elif self._compares:  # whoever has a part in this step has told its own before it
            self._compares = False
            first = SameBatches()
            for rank, told in self._member.told("batches").items():
                first.heard(rank, int(told))
