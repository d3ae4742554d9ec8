"""Carries out the coordinator's decisions on this server's shard, in order, and answers the workers.

Every server has one. It keeps the pushes that wait for a decision. When gradients are clipped by their norm
over all servers, it reports its share and stands still until the factor comes.

A server that was started again has lost the pushes that it held: it stands still at the first decision that
needs one of them, until the worker has sent it again, and answers nobody meanwhile.
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
from argosy.server.durable_memory import Memory
from argosy.server.executor_state import (
    ExecutorState,
    GivenState,
    HeldState,
    KeptTensor,
    Registrations,
)
from argosy.server.gradient_sums import Gradient
from argosy.server.model_buffers import ModelBuffers
from argosy.server.shard import Shard
from argosy.store.optimizers import disagreement
from argosy.update.coordination import is_of_later_life
from argosy.wire.message import Message
from argosy.wire.tensor_bytes import torch_dtype

Reply = Callable[[int, Header, Sequence[torch.Tensor]], None]


class _HeldPush(msgspec.Struct, frozen=True, eq=False):
    gradient: Gradient
    groups: tuple[Group, ...]
    buffers: dict[str, torch.Tensor]
    wishes: Wishes = ()
    kept: bool = False  # in memory of its own, where the next process of this server finds it

    def copy(self) -> _HeldPush:
        """The same in memory of its own."""
        buffers = {name: value.clone() for name, value in self.buffers.items()}
        return _HeldPush(self.gradient.copy(), self.groups, buffers, kept=True)


_encoder = msgspec.msgpack.Encoder()
_groups_decoder = msgspec.msgpack.Decoder(tuple[Group, ...])
_counts_decoder = msgspec.msgpack.Decoder(list[list[tuple[int, int, float]]])
_NOTHING = _HeldPush(Gradient(()), (), {})


class OrderExecutor:
    """The hands of a server.

    `reply` sends to a worker, and `copies` says whether it has copied the tensors when it returns;
    `report_norm` tells the coordinator this share of a step's norm; `saving` keeps the state. `memory`
    holds what the next process of this server needs, and `settle` makes it valid and sends the answers.
    """

    def __init__(
        self,
        server: int,
        reply: Reply,
        report_norm: Callable[[int, float], None],
        copies: Callable[[int], bool],
        saving: ShardSaving,
        workers: int,
        memory: Memory,
        settle: Callable[[], None],
    ) -> None:
        self.shard = Shard(server, memory)
        self._server = server
        self._memory = memory
        self._let_go = settle
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
        self._factors: dict[int, float] = {}  # of steps that stand still, as they have come
        self._answers_due = False  # whether an answer waits to be sent
        self._lacking = False  # whether pushes may be missing: this process is not the first of its server
        self._owed: dict[int, Wishes] = {}  # whom to answer again when nothing is missing
        self._registrations: list[Register] = []
        self._configured: tuple[Group, ...] | None = None

    def register(self, message: Message[Register]) -> None:
        """Take in new blocks and, where they are given, the buffers."""
        header = message.header
        count = len(message.tensors) - len(header.buffers)
        if count < 0:
            raise WireError("register: fewer frames than buffers")
        every = len(header.layout.blocks_of(self._server))
        if self.shard.count and count == every and not self._verdicts:
            self.shard = Shard(
                self._server, self._memory
            )  # another chief, which died before it came to the coordinator
        known = self.shard.count
        self.shard.average = header.average
        self.shard.extend(header.layout, header.optimizer, message.tensors[:count])
        if self._given:
            self.shard.begin_from(known, self._given, self._given_steps)
            for name in self._given:
                self._memory.drop(f"given/{name}")
            self._given = {}
        self.buffers.initialise(
            header.buffer_rule, dict(zip(header.buffers, message.tensors[count:], strict=True))
        )
        self._take_up(header)
        if (step := self._saving.register(header, self.shard, known)) is not None:
            self.step = step
            self.buffers.initialise(header.buffer_rule, self._saving.buffers())
        if self._memory.lasts:
            self._keep_counts()
            self._memory.put("registrations", _encoder.encode(Registrations(self._registrations)))
            self._memory.put("buffers", self.buffers.value())

    def _take_up(self, header: Register) -> None:
        """How to train, as the chief has it."""
        self.layout = header.layout
        self._mode = header.mode
        self._clip = header.clip_norm is not None
        self._wire = None if header.wire_dtype is None else torch_dtype(header.wire_dtype)
        adds = self._workers > 2 and _order_is_sure(header.mode) and self.shard.count > 0
        self._early = [] if adds else None
        self._first_groups = header.optimizer.groups
        self._registrations.append(header)

    # --- what the next process of this server needs -------------------------------------------------------
    def _keep_counts(self) -> None:
        self._memory.put("counts", _encoder.encode(self.shard.counts()))

    def keep(self) -> None:
        """Put what a decision changes into the memory; the caller commits it."""
        orders = list(self._orders) if self._measured is None else [self._measured, *self._orders]
        state = ExecutorState(self.step, self._verdicts, self._settled, orders, self._factors)
        self._memory.put("executor", _encoder.encode(state))

    def recall(self) -> Sequence[Register]:
        """Go on where the last process of this server was; what was registered then."""
        memory = self._memory
        if (registered := memory.get("registrations")) is not None:
            for header in msgspec.msgpack.decode(registered, type=Registrations).headers:
                self.shard.average = header.average
                self.shard.extend(header.layout, header.optimizer)
                self._saving.recall(header, self.shard)
                self._take_up(header)
            self.buffers.recall(memory.get("buffers") or b"")
            configured = memory.get("configured")
            groups = self._first_groups if configured is None else _groups_decoder.decode(configured)
            self.shard.recall(_counts_decoder.decode(memory.get("counts") or b"\x90"), groups)
        if (kept := memory.get("groups")) is not None:
            self._groups = msgspec.msgpack.decode(kept, type=dict[int, tuple[Group, ...]])
        if (kept := memory.get("executor")) is not None:
            state = msgspec.msgpack.decode(kept, type=ExecutorState)
            self.step, self._factors = state.step, state.factors
            self._verdicts, self._settled = state.verdicts, state.settled
            self._orders.extend(state.orders)
        for name in memory.names("given/"):
            given = msgspec.msgpack.decode(memory.get(name) or b"", type=GivenState)
            self._given[given.name] = [each.tensor() for each in given.tensors]
            self._given_steps = given.steps
        for name in memory.names("held/"):
            held = msgspec.msgpack.decode(memory.get(name) or b"", type=HeldState)
            self._held[held.worker, held.seq] = _HeldPush(*held.parts(), kept=True)
        self._lacking = True
        return self._registrations

    def lacks(self) -> list[tuple[int, tuple[int, int]]]:
        """The pushes (worker, number) that were decided on, each with its step: their workers must send them
        again.
        """
        if not self._lacking or not self._orders:
            return []
        return [
            (order.step, key)
            for order in self._orders
            if not isinstance(order, Forget)
            for key in _needed(order)
            if key not in self._held
        ]

    def hears_later_life(self, worker: int, seq: int) -> bool:
        """Whether a process has come in place of the one that gave this push."""
        return any(key[0] == worker and is_of_later_life(key[1], seq) for key in self._held)

    def give(self, message: Message[SlotValues]) -> None:
        """What the optimizer has kept of the blocks that are about to be registered."""
        self._given[message.header.name] = [tensor.clone() for tensor in message.tensors]
        self._given_steps = message.header.steps
        if self._memory.lasts:
            kept = [KeptTensor.of(tensor) for tensor in message.tensors]
            given = GivenState(message.header.name, kept, message.header.steps)
            self._memory.put(f"given/{given.name}", _encoder.encode(given))

    def keep_gradient_memory(self, worker: int, gradients: Sequence[torch.Tensor]) -> None:
        """The memory in which a worker's gradients for this server will lie."""
        self._gradient_memory[worker] = self.shard.accept(gradients, ())

    def hold_shared(self, worker: int, request: PushRequest) -> None:
        """Keep a push that lies in a worker's gradient memory."""
        if self._lacking and (worker, request.seq) in self._held:
            return  # its worker was quicker to send it again
        if self._lacking and request.kind == "gradient" and worker not in self._gradient_memory:
            return  # its worker will send it
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
                if self._orders and self._measured is None:  # what is here may be half an update
                    self._owed[worker] = header.wishes
                else:
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
            if self._memory.lasts:
                self._memory.put("groups", _encoder.encode(self._groups))
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

    def order(self, decisions: Iterable[Decision]) -> None:
        """These are to be done, after what was ordered before them."""
        self._orders.extend(decisions)

    def carry_out(self, decisions: Iterable[Decision] = ()) -> None:
        """Do these, after what was ordered before them."""
        self._orders.extend(decisions)
        while self._orders and self._measured is None:
            if self._lacking and self.lacks_next():
                return
            if self._answers_due and isinstance(self._orders[0], Apply):  # with the values of its own step
                self._answers_due = False
                self._let_go()
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
        self._answers_due = False
        if not self._orders:
            owed, self._owed = self._owed, {}
            for worker, wishes in owed.items():
                self._send(worker, self._verdicts[worker], wishes)

    def resume(self) -> None:
        """A push has come: go on, if this was the one that was missing."""
        if self._lacking and self._orders and self._measured is None:
            self.carry_out()

    def lacks_next(self) -> bool:
        """Whether what is next needs a push that is not here."""
        return any(key not in self._held for key in _needed(self._orders[0]))

    def expect_factor(self, step: int, factor: float) -> None:
        """The factor of a step is known: it is used when that step is made."""
        if self._measured is not None and self._measured.step != step and not self._lacking:
            raise WireError(f"scale: step {step} does not wait for a factor")
        if step > self.step:
            self._factors[step] = factor

    def go_on(self) -> None:
        """If the step that stands still has its factor, make it, and what follows."""
        if (
            self._measured is not None
            and (factor := self._factors.pop(self._measured.step, None)) is not None
        ):
            apply, self._measured = self._measured, None
            self._finish(apply, factor)
            self.carry_out()

    def _begin(self, apply: Apply) -> None:
        held = self._held
        self.shard.reduce([(held[part.worker, part.seq].gradient, part.weight) for part in apply.parts])
        if not self._clip:
            self._finish(apply, 1.0)
        elif (factor := self._factors.pop(apply.step, None)) is not None:
            self._finish(apply, factor)
        else:
            self._measured = apply
            self._report_norm(apply.step, self.shard.square())

    def _finish(self, apply: Apply, factor: float) -> None:
        held = [(part.worker, self._settle(part.worker, part.seq)) for part in apply.parts]
        groups = self._agreed(held)
        self.shard.update(groups, factor, apply.step)
        if self._memory.lasts:
            self._keep_counts()
            if groups is not self._configured:
                self._configured = groups
                self._memory.put("configured", _encoder.encode(groups))
        if self._early is not None:
            self._early.clear()
        if any(push.buffers for _, push in held):
            self.buffers.bring([(worker, push.buffers) for worker, push in held])
            if self._memory.lasts:
                self._memory.put("buffers", self.buffers.value())
        self.step = apply.step

    def _settle(self, worker: int, seq: int) -> _HeldPush:
        """A push is decided: let go of it, and remember that a later copy of it is of no use."""
        self._settled[worker] = max(seq, self._settled.get(worker, 0))
        held = self._held.pop((worker, seq), _NOTHING)
        if held.kept:
            self._memory.drop(f"held/{worker}/{seq}")
        return held

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
            self._held[key] = held = self._held[key].copy()
            if self._memory.lasts:
                state = HeldState.of(*key, held.gradient, held.groups, held.buffers)
                self._memory.put(f"held/{key[0]}/{key[1]}", _encoder.encode(state))
        verdict = PushAnswer(
            answer.seq, answer.status, answer.step, answer.staleness, answer.stop, cut=answer.cut
        )
        self._verdicts[answer.worker] = verdict
        self._answers_due = True
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


def _needed(order: Decision) -> list[tuple[int, int]]:
    """The pushes that must be here: those of a step, and one whose worker then has it no more."""
    if isinstance(order, Apply):
        return [(part.worker, part.seq) for part in order.parts]
    if isinstance(order, Answer) and order.status in ("held", "folded"):
        return [(order.worker, order.seq)]
    return []


def _order_is_sure(mode: Mode) -> bool:
    """Whether a step takes one gradient of weight 1 from each worker: then the order of its sum is known."""
    return isinstance(mode, Sync) and mode.aggregate is None and mode.distinct and not mode.weighted
