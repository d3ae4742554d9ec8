"""Carries out the coordinator's decisions on this server's shard, in order, and answers the workers.

Every server has one. It keeps the pushes that wait for a decision. When gradients are clipped by their norm
over all servers, it reports its share and stands still until the factor comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec
import torch

from argosy.errors import WireError
from argosy.modes import Mode, Sync
from argosy.protocol.decisions import Answer, Apply, Cut, Decision, Forget
from argosy.protocol.fields import Group
from argosy.protocol.header import Header
from argosy.protocol.joining import Register, SlotValues
from argosy.protocol.layout import Layout
from argosy.protocol.training import BlockAhead, PushAnswer, PushRequest, Wishes
from argosy.server.checkpointing import ShardSaving
from argosy.server.gradient_sums import Gradient
from argosy.server.model_buffers import ModelBuffers
from argosy.server.shard import Shard
from argosy.store.optimizers import disagreement
from argosy.wire.message import Message
from argosy.wire.tensor_bytes import torch_dtype

Reply = Callable[[int, Header, Sequence[torch.Tensor]], None]


class _HeldPush(msgspec.Struct, frozen=True, eq=False):
    gradient: Gradient
    groups: tuple[Group, ...]
    buffers: dict[str, torch.Tensor]
    wishes: Wishes = ()

    def copy(self) -> _HeldPush:
        """The same in memory of its own."""
        buffers = {name: value.clone() for name, value in self.buffers.items()}
        return _HeldPush(self.gradient.copy(), self.groups, buffers)


_NOTHING = _HeldPush(Gradient(()), (), {})


class OrderExecutor:
    """The hands of a server.

    `reply` sends to a worker, and `copies` says whether it has copied the tensors when it returns;
    `report_norm` tells the coordinator this share of a step's norm; `saving` keeps the state.
    """

    def __init__(
        self,
        server: int,
        reply: Reply,
        report_norm: Callable[[int, float], None],
        copies: Callable[[int], bool],
        saving: ShardSaving,
        workers: int,
    ) -> None:
        self.shard = Shard(server)
        self._server = server
        self.buffers = ModelBuffers()
        self.layout = Layout()
        self.step = 0
        self._reply = reply
        self._report_norm = report_norm
        self._copies = copies
        self._saving = saving
        self._workers = workers
        self._mode: Mode | None = None
        self._clip = False
        self._wire: torch.dtype | None = None
        self._early: list[tuple[int, int]] | None = None  # summed already; None: no order is sure
        self._first_groups: tuple[Group, ...] = ()
        self._held: dict[tuple[int, int], _HeldPush] = {}
        self._gradient_memory: dict[int, Gradient] = {}  # where each worker's gradients lie
        self._given: dict[str, Sequence[torch.Tensor]] = {}  # an optimizer's state, until it is registered
        self._given_steps: Sequence[Sequence[tuple[int, int, float]]] = ()
        self._ahead: dict[int, tuple[int, dict[int, torch.Tensor]]] = {}  # sent ahead, for which push
        self._groups: dict[int, tuple[Group, ...]] = {}  # each worker's latest hyperparameters
        self._verdicts: dict[int, PushAnswer] = {}  # each worker's latest answer
        self._settled: dict[int, int] = {}  # each worker's latest push that is decided
        self._orders: deque[Decision] = deque()
        self._measured: Apply | None = None  # the step whose factor is awaited

    def register(self, message: Message[Register]) -> None:
        """Take in new blocks and, where they are given, the buffers."""
        header = message.header
        count = len(message.tensors) - len(header.buffers)
        if count < 0:
            raise WireError("register: fewer frames than buffers")
        every = len(header.layout.blocks_of(self._server))
        if self.shard.count and count == every and not self._verdicts:
            self.shard = Shard(self._server)  # another chief, which died before it came to the coordinator
        known = self.shard.count
        self.shard.average = header.average
        self.shard.extend(header.layout, header.optimizer, message.tensors[:count])
        if self._given:
            self.shard.begin_from(known, self._given, self._given_steps)
            self._given = {}
        self.layout = header.layout
        self.buffers.initialise(
            header.buffer_rule, dict(zip(header.buffers, message.tensors[count:], strict=True))
        )
        self._mode = header.mode
        self._clip = header.clip_norm is not None
        self._wire = None if header.wire_dtype is None else torch_dtype(header.wire_dtype)
        adds = self._workers > 2 and _order_is_sure(header.mode) and self.shard.count > 0
        self._early = [] if adds else None
        self._first_groups = header.optimizer.groups
        if (step := self._saving.register(header, self.shard, known)) is not None:
            self.step = step
            self.buffers.initialise(header.buffer_rule, self._saving.buffers())

    def give(self, message: Message[SlotValues]) -> None:
        """What the optimizer has kept of the blocks that are about to be registered."""
        self._given[message.header.name] = [tensor.clone() for tensor in message.tensors]
        self._given_steps = message.header.steps

    def keep_gradient_memory(self, worker: int, gradients: Sequence[torch.Tensor]) -> None:
        """The memory in which a worker's gradients for this server will lie."""
        self._gradient_memory[worker] = self.shard.accept(gradients, ())

    def hold_shared(self, worker: int, request: PushRequest) -> None:
        """Keep a push that lies in a worker's gradient memory."""
        if not self._answer_again(worker, request):
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
        """Keep a push until its decision comes; False for one that was answered before, and is again."""
        header = message.header
        if self._answer_again(worker, header):
            return False
        if header.shared and not message.tensors:
            self._keep(worker, header, self._in_gradient_memory(worker, header), {})
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

    def _answer_again(self, worker: int, header: PushRequest) -> bool:
        """Whether a push was decided on before; its answer is then sent again if it may have been lost."""
        latest = self._verdicts.get(worker)
        if latest is not None and header.seq <= latest.seq:
            if header.seq == latest.seq:  # nobody waits for the answer to an earlier one
                self._send(worker, latest, header.wishes)
            return True
        return header.seq <= self._settled.get(worker, 0)  # its answer is on the way

    def _buffers_of(self, message: Message[PushRequest]) -> dict[str, torch.Tensor]:
        names = message.header.buffers
        if len(names) > len(message.tensors):
            raise WireError("push: fewer frames than buffers")
        buffers = dict(zip(names, message.tensors[-len(names) :], strict=True))
        if unknown := [name for name, value in buffers.items() if not self.buffers.known(name, value)]:
            raise WireError(f"push: unknown buffers {unknown}")
        return buffers

    def _keep(
        self, worker: int, header: PushRequest, gradient: Gradient, buffers: dict[str, torch.Tensor]
    ) -> None:
        if header.groups is not None:
            self._groups[worker] = header.groups
        groups = self._groups.get(worker, self._first_groups)
        self._held[worker, header.seq] = _HeldPush(gradient, groups, buffers, header.wishes)

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

    def add_early(self) -> None:
        """Add the gradients that stand first in the next sum, while those of later workers are awaited."""
        # A step that waits for its factor still has its mean in the sums.
        while self._early is not None and self._measured is None:
            place = len(self._early)
            key = next((key for key in self._held if key[0] == place and key not in self._early), None)
            if key is None or not self.shard.is_whole(self._held[key].gradient):
                return
            self.shard.add_early(self._held[key].gradient)
            self._early.append(key)

    def holds(self, worker: int, seq: int, anew: bool) -> bool:
        """Whether a push is here, or was answered; an answer before the connection was made `anew` is not
        counted on.
        """
        latest = self._verdicts.get(worker)
        if anew and latest is not None and seq <= latest.seq:
            return False
        return (worker, seq) in self._held or seq <= self._settled.get(worker, 0)

    def carry_out(self, decisions: Iterable[Decision]) -> None:
        """Do these after what was ordered before them."""
        self._orders.extend(decisions)
        while self._orders and self._measured is None:
            match self._orders.popleft():
                case Apply() as apply:
                    self._begin(apply)
                case Answer() as answer:
                    self._answer(answer)
                case Forget(worker, seq):
                    self._settle(worker, seq)
                case Cut(step):
                    groups = self._groups.get(0, self._first_groups)  # the chief's
                    buffers = self.buffers.beside({p.name for p in self.layout.parameters})
                    self._saving.cut(step, self.shard, self.layout, buffers, groups)

    def scale(self, step: int, factor: float) -> None:
        """The factor of the step that stands still is known: go on."""
        if self._measured is None or self._measured.step != step:
            raise WireError(f"scale: step {step} does not wait for a factor")
        apply, self._measured = self._measured, None
        self._finish(apply, factor)
        self.carry_out(())

    def _begin(self, apply: Apply) -> None:
        held = self._held
        self.shard.reduce([(held[part.worker, part.seq].gradient, part.weight) for part in apply.parts])
        if self._clip:
            self._measured = apply
            self._report_norm(apply.step, self.shard.square())
        else:
            self._finish(apply, 1.0)

    def _finish(self, apply: Apply, factor: float) -> None:
        held = [(part.worker, self._settle(part.worker, part.seq)) for part in apply.parts]
        self.shard.update(self._agreed(held), factor, apply.step)
        if self._early is not None:
            self._early.clear()
        if any(push.buffers for _, push in held):
            self.buffers.bring([(worker, push.buffers) for worker, push in held])
        self.step = apply.step

    def _settle(self, worker: int, seq: int) -> _HeldPush:
        """A push is decided: let go of it, and remember that a later copy of it is of no use."""
        self._settled[worker] = max(seq, self._settled.get(worker, 0))
        return self._held.pop((worker, seq), _NOTHING)

    def _agreed(self, held: Sequence[tuple[int, _HeldPush]]) -> tuple[Group, ...]:
        """The hyperparameters of a step: those of its first worker, and all the same where all must agree."""
        first, push = held[0]
        if isinstance(self._mode, Sync) and self._mode.aggregate is None and self._mode.distinct:
            for worker, other in held[1:]:
                if other.groups != push.groups:
                    raise disagreement(
                        "a synchronous step",
                        f"/job:worker/task:{first}",
                        push.groups,
                        f"/job:worker/task:{worker}",
                        other.groups,
                    )
        return push.groups

    def _answer(self, answer: Answer) -> None:
        key = (answer.worker, answer.seq)
        wishes: Wishes = ()
        if answer.status in ("skipped", "pulled"):  # no part of any step
            wishes = self._settle(*key).wishes
        elif key in self._held:  # its worker goes on before the step is made, and may write to its memory
            self._held[key] = self._held[key].copy()
        verdict = PushAnswer(
            answer.seq, answer.status, answer.step, answer.staleness, answer.stop, cut=answer.cut
        )
        self._verdicts[answer.worker] = verdict
        self._send(answer.worker, verdict, wishes)

    def _send_slots(self, worker: int, verdict: PushAnswer) -> None:
        """Answer with what the optimizer keeps of each block, in place of its values."""
        blocks = list(self.shard.blocks())
        kept = [{k: t for k, t in block.tensors.items() if k.startswith("slot/")} for block in blocks]
        header = msgspec.structs.replace(
            verdict,
            slots=tuple(tuple(name.removeprefix("slot/") for name in slots) for slots in kept),
            steps=tuple(tuple(block.steps) for block in blocks),
        )
        self._reply(worker, header, [tensor.clone() for slots in kept for tensor in slots.values()])

    def _send(self, worker: int, verdict: PushAnswer, wishes: Wishes = ()) -> None:
        if "slots" in wishes:
            self._send_slots(worker, verdict)
            return
        everything = verdict.status == "pulled"
        # A push that is held has not been applied: what its worker brought is newer than what is here.
        moving = {} if verdict.status == "held" else self.buffers.moving
        buffers = self.buffers.everything() if everything else moving
        header = msgspec.structs.replace(verdict, buffers=tuple(buffers)) if buffers else verdict
        if "average" in wishes:
            values = self.shard.averages()
        elif self._copies(worker):
            values = self.shard.live()
        else:
            values = self.shard.values(None if everything else self._wire)
        self._reply(worker, header, [*values, *buffers.values()])


def _order_is_sure(mode: Mode) -> bool:
    """Whether a step takes one gradient of weight 1 from each worker: then the order of its sum is known."""
    return isinstance(mode, Sync) and mode.aggregate is None and mode.distinct and not mode.weighted
