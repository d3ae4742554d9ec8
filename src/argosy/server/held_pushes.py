"""The pushes of workers that wait for a decision on this server, and the memory that they lie in.

`OrderExecutor` owns one. A push came as a message, or lies in a worker's gradient memory, or in part came
ahead. Where the order of a step's sum is known, the first gradients are added while the others are awaited.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from argosy.errors import WireError
from argosy.modes import Mode, Sync
from argosy.protocol.fields import Group
from argosy.protocol.joining import Register
from argosy.protocol.training import BlockAhead, PushRequest, Wishes
from argosy.server.durable_memory import Memory
from argosy.server.executor_state import HeldState
from argosy.server.gradient_sums import Gradient
from argosy.server.model_buffers import ModelBuffers
from argosy.server.shard import Shard
from argosy.update.coordination import is_of_later_life
from argosy.wire.message import Message


class HeldPush(msgspec.Struct, frozen=True, eq=False):
    """A worker's gradient, its hyperparameters and buffers, until the decision."""

    gradient: Gradient
    groups: tuple[Group, ...]
    buffers: dict[str, torch.Tensor]
    wishes: Wishes = ()
    kept: bool = False  # in memory of its own, where the next process of this server finds it

    def copy(self) -> HeldPush:
        """The same in memory of its own."""
        buffers = {name: value.clone() for name, value in self.buffers.items()}
        return HeldPush(self.gradient.copy(), self.groups, buffers, kept=True)


_encoder = msgspec.msgpack.Encoder()
_NOTHING = HeldPush(Gradient(()), (), {})


class HeldPushes:
    """Of one server. `shard` says what a gradient looks like, `buffers` which buffers there are."""

    def __init__(self, shard: Shard, buffers: ModelBuffers, workers: int, memory: Memory) -> None:
        self.shard = shard
        self.first_groups: tuple[Group, ...] = ()
        self._buffers = buffers
        self._workers = workers
        self._memory = memory
        self._held: dict[tuple[int, int], HeldPush] = {}
        self._gradient_memory: dict[int, Gradient] = {}  # where each worker's gradients lie
        self._ahead: dict[int, tuple[int, dict[int, torch.Tensor]]] = {}  # sent ahead, for which push
        self._groups: dict[int, tuple[Group, ...]] = {}  # each worker's latest hyperparameters
        self._early: list[tuple[int, int]] | None = None  # summed already; None: no order is sure

    def take_up(self, header: Register) -> None:
        """How to train, as the chief has it."""
        adds = self._workers > 2 and _order_is_sure(header.mode) and self.shard.count > 0
        self._early = [] if adds else None
        self.first_groups = header.optimizer.groups

    def recall(self) -> None:
        """Those of which the last process of this server has kept a copy, and the hyperparameters."""
        if (kept := self._memory.get("groups")) is not None:
            self._groups = msgspec.msgpack.decode(kept, type=dict[int, tuple[Group, ...]])
        for name in self._memory.names("held/"):
            held = msgspec.msgpack.decode(self._memory.get(name) or b"", type=HeldState)
            self._held[held.worker, held.seq] = HeldPush(*held.parts(), kept=True)

    # --- what comes ---------------------------------------------------------------------------------------
    def keep_gradient_memory(self, worker: int, gradients: Sequence[torch.Tensor]) -> None:
        """The memory in which a worker's gradients for this server will lie."""
        self._gradient_memory[worker] = self.shard.accept(gradients, ())

    def sees(self, worker: int) -> bool:
        """Whether a worker has shown where its gradients lie."""
        return worker in self._gradient_memory

    def hold_shared(self, worker: int, request: PushRequest) -> None:
        """Keep a push that lies in a worker's gradient memory."""
        self._keep(worker, request, self._in_gradient_memory(worker, request), {})

    def _in_gradient_memory(self, worker: int, request: PushRequest) -> Gradient:
        if request.kind != "gradient":
            return _NOTHING.gradient
        if (whole := self._gradient_memory.get(worker)) is None:
            raise WireError(f"push: worker {worker} has not shown where its gradients lie")
        if request.absent:
            return msgspec.structs.replace(whole, absent=frozenset(request.absent))
        return whole

    def hold(self, worker: int, message: Message[PushRequest]) -> bool:
        """Keep a push until its decision comes; False for one of which a block was lost."""
        header = message.header
        if header.shared and not message.tensors:
            self.hold_shared(worker, header)
            return True
        blocks, buffers = message.tensors, self._buffers_of(message) if header.buffers else {}
        if buffers:
            blocks = blocks[: -len(buffers)]
        if header.ahead:
            whole = self._with_ahead(worker, header, blocks)
            if whole is None:
                return False  # the worker will ask, and send all of it again
            blocks = whole
        self._keep(worker, header, self.shard.accept(blocks, header.absent), buffers)
        return True

    def _buffers_of(self, message: Message[PushRequest]) -> dict[str, torch.Tensor]:
        names = message.header.buffers
        if len(names) > len(message.tensors):
            raise WireError("push: fewer frames than buffers")
        buffers = dict(zip(names, message.tensors[-len(names) :], strict=True))
        if unknown := [name for name, value in buffers.items() if not self._buffers.known(name, value)]:
            raise WireError(f"push: unknown buffers {unknown}")
        return buffers

    def _keep(
        self, worker: int, header: PushRequest, gradient: Gradient, buffers: dict[str, torch.Tensor]
    ) -> None:
        if header.groups is not None:
            self._groups[worker] = header.groups
            if self._memory.lasts:
                self._memory.put("groups", _encoder.encode(self._groups))
        self._held[worker, header.seq] = HeldPush(gradient, self.groups_of(worker), buffers, header.wishes)

    def groups_of(self, worker: int) -> tuple[Group, ...]:
        """A worker's latest hyperparameters."""
        return self._groups.get(worker, self.first_groups)

    def keep_ahead(self, worker: int, message: Message[BlockAhead]) -> None:
        """Keep a block that was sent ahead; those of an earlier push are of no use any more."""
        header = message.header
        if len(message.tensors) != 1 or header.place >= self.shard.count:
            raise WireError(f"block sent ahead: expected one block at a place below {self.shard.count}")
        seq, kept = self._ahead.get(worker, (0, {}))
        kept = kept if seq == header.seq else {}
        self._ahead[worker] = (header.seq, {**kept, header.place: message.tensors[0]})

    def _with_ahead(
        self, worker: int, header: PushRequest, rest: Sequence[torch.Tensor]
    ) -> list[torch.Tensor] | None:
        """All blocks of a push, those that came ahead in their places; None if one of them is not here."""
        seq, kept = self._ahead.pop(worker, (0, {}))
        if seq != header.seq or not set(header.ahead) <= kept.keys():
            return None
        later = iter(rest)
        places = range(len(header.ahead) + len(rest))
        ahead = set(header.ahead)
        if not ahead <= set(places):
            raise WireError(f"push: blocks {header.ahead} ahead, but {len(places)} in all")
        return [kept[place] if place in ahead else next(later) for place in places]

    # --- what follows -------------------------------------------------------------------------------------
    def add_early(self) -> None:
        """Add the gradients that stand first in the next sum, while those of later workers are awaited."""
        while self._early is not None:
            place = len(self._early)
            key = next((key for key in self._held if key[0] == place and key not in self._early), None)
            if key is None or not self.shard.is_whole(self._held[key].gradient):
                return
            self.shard.add_early(self._held[key].gradient)
            self._early.append(key)

    def summed(self) -> None:
        """A step is made: the next sum begins anew."""
        if self._early is not None:
            self._early.clear()

    def __contains__(self, push: tuple[int, int]) -> bool:
        return push in self._held

    def of_later_life(self, worker: int, seq: int) -> bool:
        """Whether one has come of a process that took the place of the one that gave this push."""
        return any(other == worker and is_of_later_life(later, seq) for other, later in self._held)

    def gradient(self, worker: int, seq: int) -> Gradient:
        """That of a push that is here."""
        return self._held[worker, seq].gradient

    def keep_copy(self, worker: int, seq: int) -> None:
        """Hold a push in memory of its own, where the next process of this server finds it, too."""
        self._held[worker, seq] = held = self._held[worker, seq].copy()
        if self._memory.lasts:
            state = HeldState.of(worker, seq, held.gradient, held.groups, held.buffers)
            self._memory.put(f"held/{worker}/{seq}", _encoder.encode(state))

    def let_go(self, worker: int, seq: int) -> HeldPush:
        """Hold a push no longer; an empty one, if it was not here."""
        held = self._held.pop((worker, seq), _NOTHING)
        if held.kept:
            self._memory.drop(f"held/{worker}/{seq}")
        return held


def _order_is_sure(mode: Mode) -> bool:
    """Whether a step takes one gradient of weight 1 from each worker: then the order of its sum is known."""
    return isinstance(mode, Sync) and mode.aggregate is None and mode.distinct and not mode.weighted
