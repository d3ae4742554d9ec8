"""Carries out the coordinator's decisions on this server's shard, in order, and answers the workers.

Every server has one. The pushes that wait for a decision lie in its `HeldPushes`. When gradients are clipped
by their norm over all servers, it reports its share and stands still until the factor comes.

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
from argosy.protocol.training import PushAnswer, PushRequest, Wishes
from argosy.server.checkpointing import ShardSaving
from argosy.server.durable_memory import Memory
from argosy.server.executor_state import ExecutorState, Registrations
from argosy.server.given_slots import GivenSlots
from argosy.server.held_pushes import HeldPush, HeldPushes
from argosy.server.model_buffers import ModelBuffers
from argosy.server.shard import Shard
from argosy.store.optimizers import disagreement
from argosy.wire.message import Message
from argosy.wire.tensor_bytes import torch_dtype

Reply = Callable[[int, Header, Sequence[torch.Tensor]], None]


_encoder = msgspec.msgpack.Encoder()
_groups_decoder = msgspec.msgpack.Decoder(tuple[Group, ...])
_counts_decoder = msgspec.msgpack.Decoder(list[list[tuple[int, int, float]]])


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
        self.pushes = HeldPushes(self.shard, self.buffers, workers, memory)
        self._given = GivenSlots(memory)
        self.layout = Layout()
        self.step = 0
        self._reply = reply
        self._report_norm = report_norm
        self._copies = copies
        self._saving = saving
        self._mode: Mode | None = None
        self._clip = False
        self._wire: torch.dtype | None = None
        self._verdicts: dict[int, PushAnswer] = {}  # each worker's latest answer
        self._settled: dict[int, int] = {}  # each worker's latest push that is decided
        self._orders: deque[Decision] = deque()
        self._measured: Apply | None = None  # the step whose factor is awaited
        self._factors: dict[int, float] = {}  # of steps that stand still, as they have come
        self._keep_due = False  # whether a step or an answer is not kept yet
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
            # Another chief, which died before it came to the coordinator.
            self.shard = self.pushes.shard = Shard(self._server, self._memory)
        known = self.shard.count
        self.shard.average = header.average
        self.shard.extend(header.layout, header.optimizer, message.tensors[:count])
        self._given.use(self.shard, known)
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
        self.pushes.take_up(header)
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
            groups = self.pushes.first_groups if configured is None else _groups_decoder.decode(configured)
            self.shard.recall(_counts_decoder.decode(memory.get("counts") or b"\x90"), groups)
        if (kept := memory.get("executor")) is not None:
            state = msgspec.msgpack.decode(kept, type=ExecutorState)
            self.step, self._factors = state.step, state.factors
            self._verdicts, self._settled = state.verdicts, state.settled
            self._orders.extend(state.orders)
        self._given.recall()
        self.pushes.recall()
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
            if key not in self.pushes
        ]

    def give(self, message: Message[SlotValues]) -> None:
        """What the optimizer has kept of the blocks that are about to be registered."""
        self._given.give(message)

    def hold_shared(self, worker: int, request: PushRequest) -> None:
        """Keep a push that lies in a worker's gradient memory."""
        if self._lacking and (worker, request.seq) in self.pushes:
            return  # its worker was quicker to send it again
        if self._lacking and request.kind == "gradient" and not self.pushes.sees(worker):
            return  # its worker will send it
        if not self._answer_again(worker, request):
            self.pushes.hold_shared(worker, request)

    def hold(self, worker: int, message: Message[PushRequest]) -> bool:
        """Keep a push until its decision comes; False for one that was answered before, and is again."""
        return not self._answer_again(worker, message.header) and self.pushes.hold(worker, message)

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

    def add_early(self) -> None:
        """Add the gradients that stand first in the next sum, while those of later workers are awaited."""
        if self._measured is None:  # a step that waits for its factor still has its mean in the sums
            self.pushes.add_early()

    def holds(self, worker: int, seq: int, anew: bool) -> bool:
        """Whether a push is here, or was answered; an answer before the connection was made `anew` is not
        counted on.
        """
        latest = self._verdicts.get(worker)
        if anew and latest is not None and seq <= latest.seq:
            return False
        return (worker, seq) in self.pushes or seq <= self._settled.get(worker, 0)

    def order(self, decisions: Iterable[Decision]) -> None:
        """These are to be done, after what was ordered before them."""
        self._orders.extend(decisions)

    def carry_out(self, decisions: Iterable[Decision] = ()) -> None:
        """Do these, after what was ordered before them."""
        self._orders.extend(decisions)
        while self._orders and self._measured is None:
            if self._lacking and self.lacks_next():
                return
            # One update must be kept before the next begins; answers go out with their own step's values.
            if self._keep_due and isinstance(self._orders[0], Apply):
                self._keep_due = False
                self._let_go()
            match self._orders.popleft():
                case Apply() as apply:
                    self._begin(apply)
                case Answer() as answer:
                    self._answer(answer)
                case Forget(worker, seq):
                    self._settle(worker, seq)
                case Cut(step):
                    groups = self.pushes.groups_of(0)  # the chief's
                    buffers = self.buffers.beside({p.name for p in self.layout.parameters})
                    self._saving.cut(step, self.shard, self.layout, buffers, groups)
        self._keep_due = False
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
        return any(key not in self.pushes for key in _needed(self._orders[0]))

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
        pushes = self.pushes
        self.shard.reduce([(pushes.gradient(part.worker, part.seq), part.weight) for part in apply.parts])
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
        self.pushes.summed()
        if any(push.buffers for _, push in held):
            self.buffers.bring([(worker, push.buffers) for worker, push in held])
            if self._memory.lasts:
                self._memory.put("buffers", self.buffers.value())
        self.step = apply.step
        self._keep_due = True

    def _settle(self, worker: int, seq: int) -> HeldPush:
        """A push is decided: let go of it, and remember that a later copy of it is of no use."""
        self._settled[worker] = max(seq, self._settled.get(worker, 0))
        return self.pushes.let_go(worker, seq)

    def _agreed(self, held: Sequence[tuple[int, HeldPush]]) -> tuple[Group, ...]:
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
        elif key in self.pushes:  # its worker goes on before the step is made, and may write to its memory
            self.pushes.keep_copy(*key)
        verdict = PushAnswer(
            answer.seq, answer.status, answer.step, answer.staleness, answer.stop, cut=answer.cut
        )
        self._verdicts[answer.worker] = verdict
        self._keep_due = True
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
