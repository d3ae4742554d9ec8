"""The exchange with parameter servers: push gradients, wait for the verdict, pull what it brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import torch
from torch import nn

from argosy.errors import CallError, ConfigError
from argosy.events import say
from argosy.modes import Mode
from argosy.protocol.fields import Group
from argosy.protocol.frames import Dtype
from argosy.protocol.joining import Register, SlotValues
from argosy.protocol.layout import Layout, ParameterSpec, extend
from argosy.protocol.saving import DirectoryOpened
from argosy.protocol.training import PushAnswer, PushRequest, Wish
from argosy.replica.block_packing import BlockPacking
from argosy.replica.exchange import (
    Resumed,
    Training,
    Verdict,
    begin_from,
    names_of,
    parameters_of,
    tied_names,
)
from argosy.replica.model_state import ModelState
from argosy.replica.optimizer_slots import gather_slots, spread_slots
from argosy.replica.overlap import Overlap
from argosy.replica.turn import Turn
from argosy.store.client import StoreClient
from argosy.store.optimizers import Hyperparameters, describe
from argosy.store.placement import UserPlacement, place
from argosy.wire.message import Message
from argosy.wire.tensor_bytes import dtype_name


@dataclass(frozen=True)
class Options:
    """What `distribute` was told: where parameters go, how gradients are clipped, how both travel."""

    placement: UserPlacement
    clip_norm: float | None = None
    wire_dtype: Dtype | None = None
    overlap: bool = False


_REMEDY = "call step(), pull() and state_dict() inside `with replica.session(...)`, or load a checkpoint"
# Blocks that leave while backward goes on are of this size: small enough to be ready early.
_BLOCK_BYTES = 4 * 2**20


class ServerExchange:
    """One replica's `Exchange` with the servers."""

    def __init__(
        self,
        client: StoreClient,
        mode: Mode,
        servers: int,
        options: Options,
        is_chief: bool,
    ) -> None:
        self._client = client
        self._mode = mode
        self._servers = servers
        self._options = options
        self._is_chief = is_chief
        self._layout = Layout()
        self._version = 0
        self._groups: tuple[Group, ...] | None = None
        self._attached: list[int] = []
        self._overlap: Overlap | None = None
        self._restore = ""  # the checkpoint that the training begins from
        self._cut = False  # whether a step was saved, and waits for this replica's state
        self._replays = 0  # turns that count already: a process before has made them
        self._wishes: dict[Wish, None] = {}
        self.resumed = Resumed()
        self.keeps_state = True

    # --- beginning ----------------------------------------------------------------------------------------
    def watch(self, optimizer: torch.optim.Optimizer, begin: Callable[[], None]) -> None:
        """See `Exchange`. The first step is soon enough."""

    def start(self, optimizer: torch.optim.Optimizer, training: Training) -> Verdict:
        self._optimizer = optimizer
        self._hyperparameters = Hyperparameters(optimizer)
        self._training = training
        self._brings = self._is_chief or training.buffer_rule == "mean"
        if self._is_chief:
            self._open(training)
        self._state = ModelState(training.model, (p for _, p in parameters_of(optimizer)))
        self._register()
        if training.keeping is not None or training.carried is not None:
            found = self._client.resume()
            self.resumed = Resumed(found.step, found.state, found.groups, carried=found.carried)
            self._replays = 0 if found.carried is None else found.carried.turns
            begin_from(optimizer, training, self.resumed)
        verdict = self.pull()
        return msgspec.structs.replace(verdict, stop=verdict.stop and not self._replays)

    def _open(self, training: Training) -> None:
        """Find out what the training begins from, and say it."""
        begin = training.initial
        if training.keeping is not None:
            opened = self._client.open(training.keeping.directory, training.keeping.keep)
            self._restore = opened.checkpoint
            begin = None if opened.checkpoint or opened.again else begin
            say_beginning(opened, training.keeping.directory)
        if begin is not None:
            begin()

    def _register(self) -> None:
        """Agree with the others on the layout of all parameters that the optimizer has now."""
        attached = self._client.attached
        pairs = parameters_of(self._optimizer)
        names = names_of(self._training.model, pairs)
        specs = [
            ParameterSpec(name, tuple(p.shape), dtype_name(p.dtype, name), group)
            for name, (group, p) in zip(names, pairs, strict=True)
        ]
        layout = self._client.describe(specs, self._mode)
        parameters = [parameter for _, parameter in pairs]
        if not layout.parameters:
            fresh = specs[len(self._layout.parameters) :]
            shares = place(self._options.placement, fresh, self._layout.loads(self._servers))
            layout = extend(self._layout, fresh, shares, _BLOCK_BYTES if self._options.overlap else None)
            self._packing = self._pack(layout, parameters)
            if not self._restore:
                self._give_slots(layout, parameters)
            self._client.register(self._registrations(layout))
        else:
            self._packing = self._pack(layout, parameters)
        self._share(layout, parameters)
        self._attached = attached
        self._layout = layout
        self._count = len(parameters)

    def _attach(self) -> None:
        """A server has come back: reserve memory that it can see, and show it.

        Parameters live where they lived until its next answer brings them to where it writes now.
        """
        attached = self._client.attached
        parameters = [parameter for _, parameter in parameters_of(self._optimizer)]
        self._packing.detach()
        self._packing = self._pack(self._layout, parameters)
        self._share(self._layout, parameters)
        self._attached = attached  # one that came back meanwhile is attached to the next time

    def _share(self, layout: Layout, parameters: Sequence[nn.Parameter]) -> None:
        self._client.share(self._packing.gradient_memory())
        self._send_ahead(layout, parameters)

    def extend(self, first: int) -> None:
        """See `Exchange`. Buffers stay as they are: this worker may have changed some in this step."""
        self._register()
        answers = self._ask("pull", {})
        self._take_values(answers)
        self._version, self._cut = answers[0].header.step, answers[0].header.cut

    def _give_slots(self, layout: Layout, parameters: Sequence[nn.Parameter]) -> None:
        """An optimizer that has been stepped before, or was loaded, goes on from there on the servers."""
        states = [self._optimizer.state.get(parameter, {}) for parameter in parameters]
        spec = describe(self._optimizer)
        for server in range(self._servers):
            fresh = layout.blocks_of(server)[len(self._layout.blocks_of(server)) :]
            if any(states[p.parameter] for p in layout.pieces if p.block in fresh):
                slots, steps = spread_slots(layout, fresh, states, spec)
                for name, tensors in slots.items():  # one by one, as each fits where gradients will lie
                    self._client.give(server, SlotValues(name, steps), tensors)

    def _pack(self, layout: Layout, parameters: Sequence[nn.Parameter]) -> BlockPacking:
        wire: dict[int, Dtype] = {}
        if self._options.wire_dtype is not None:  # in shared memory nothing travels, so nothing is shortened
            far = [server for server, near in enumerate(self._client.in_place) if not near]
            wire = dict.fromkeys(far, self._options.wire_dtype)
        return BlockPacking(layout, parameters, self._client.reserve, wire)

    def _send_ahead(self, layout: Layout, parameters: Sequence[nn.Parameter]) -> None:
        if self._overlap is not None:
            self._overlap.close()
            self._overlap = None
        far = [server for server, near in enumerate(self._client.in_place) if not near]
        if self._options.overlap and far:
            self._overlap = Overlap(layout, parameters, self._packing, far, self._client.send_ahead)

    def _registrations(self, layout: Layout) -> list[tuple[Register, list[torch.Tensor]]]:
        values = self._packing.values()
        keeping = self._training.keeping
        buffers = self._state.everything() if not self._layout.blocks else {}
        result = []
        for server in range(self._servers):
            header = Register(
                layout,
                describe(self._optimizer),
                self._mode,
                self._training.last_step,
                self._options.clip_norm,
                self._training.buffer_rule,
                tuple(buffers) if server == 0 else (),
                self._options.wire_dtype,
                "" if keeping is None else keeping.directory,
                None if keeping is None else keeping.save_every,
                self._restore,
                self._training.average,
                tied_names(self._training.model),
            )
            known = len(self._layout.blocks_of(server))
            tensors = values.get(server, [])[known:]
            result.append((header, [*tensors, *buffers.values()] if server == 0 else tensors))
        return result

    # --- training -----------------------------------------------------------------------------------------
    def _follow(self) -> None:
        """Groups may have been added to the optimizer inside; servers may have come back."""
        count = 0
        for group in self._optimizer.param_groups:
            count += len(group["params"])
        if count != self._count:
            self._register()
        if self._client.attached != self._attached:
            self._attach()

    def _refuse_loaded(self) -> None:
        """The answer would undo what the script has loaded into the model."""
        if (loaded := self._training.loads.changed()) is not None:
            raise CallError(
                loaded.where,
                "load_state_dict()",
                "the servers have the parameters, and the next answer would undo it",
                "load before the session, or after the last step: then it stays",
            )

    def step(self, turn: Turn) -> Verdict:
        self._refuse_loaded()
        self._follow()
        factor = turn.factor
        done, ahead = self._overlap.collect(factor) if self._overlap is not None else ((), {})
        if self._replays:
            return self._replay("applied")
        tensors, absent = self._packing.pack(factor, done)
        buffers = self._state.changed() if self._brings else {}
        tensors[0] = [*tensors.get(0, ()), *buffers.values()]
        return self._take(self._ask("gradient", tensors, turn.weight, absent, tuple(buffers), ahead))

    def skip(self) -> Verdict:
        self._refuse_loaded()
        self._follow()
        if self._overlap is not None:
            self._overlap.reset()
        if self._replays:
            return self._replay("skipped")
        return self._take(self._ask("skip", {}))

    def _replay(self, status: Literal["applied", "skipped"]) -> Verdict:
        """A turn that counts already: it only brings the script to where the process before it was."""
        self._replays -= 1
        if self._training.carried is not None:
            self._training.carried(False)
        cut, self._cut = self._cut, False  # the state is to be that of after this turn
        verdict = self.pull()
        self._cut |= cut
        return msgspec.structs.replace(verdict, status=status)

    def accumulate(self, waits: bool) -> None:
        """See `Exchange`. Nothing leaves before a step."""

    def hold(self, waits: bool, scaled: bool) -> None:
        """See `Exchange`."""

    def pull(self) -> Verdict:
        return self._take(self._ask("pull", {}))

    def pull_average(self) -> Verdict:
        self._refuse_loaded()
        self._wishes["average"] = None
        return self._take(self._ask("pull", {}))

    def optimizer_state(self) -> dict[int, dict[str, Any]]:
        with self._training.loads.kept():
            return self._optimizer_state()

    def _optimizer_state(self) -> dict[int, dict[str, Any]]:
        self._wishes["slots"] = None
        answers = self._ask("pull", {})
        found: dict[int, dict[str, Any]] = {}
        for server, answer in enumerate(answers):
            frames = iter(answer.tensors)
            blocks = self._layout.blocks_of(server)
            for number, names, steps in zip(blocks, answer.header.slots, answer.header.steps, strict=True):
                slots = {name: next(frames) for name in names}
                gather_slots(found, self._layout, number, slots, steps)
        self.pull()  # on one host the answer came to where the parameters live
        return found

    def wish(self, what: Literal["save", "stop"]) -> None:
        self._wishes[what] = None

    def give_state(self) -> None:
        if self._cut and not self._replays:
            self._cut = False
            self._client.give_state(self._training.state(), self._version)

    def finish(self) -> Verdict:
        self._cut = self._training.keeping is not None
        self._wishes["last"] = None
        return self.pull()

    def _ask(
        self,
        kind: Literal["gradient", "skip", "pull"],
        tensors: dict[int, list[torch.Tensor]],
        weight: float = 1.0,
        absent: tuple[int, ...] = (),
        buffers: tuple[str, ...] = (),
        ahead: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    ) -> list[Message[PushAnswer]]:
        if self._client.closed:
            raise ConfigError(
                "optimizer", "a session that goes on", "one that has ended, and the servers with it", _REMEDY
            )
        groups = self._hyperparameters.now()
        news = groups if groups != self._groups else None
        if self._cut:
            self.give_state()
        wishes = tuple(self._wishes)
        self._wishes.clear()
        numbers, logged = self._training.numbers()
        batches = self._training.batches() if kind == "gradient" else 0
        carried = self._training.carried
        state = carried(True) if carried is not None and kind != "pull" else None
        request = PushRequest(
            0,
            self._version,
            kind,
            weight,
            absent,
            news,
            buffers,
            False,
            (),
            wishes,
            numbers,
            logged,
            batches,
            state,
        )
        answers = self._client.push(request, tensors, ahead)
        self._groups = groups
        return answers

    def _take(self, answers: Sequence[Message[PushAnswer]]) -> Verdict:
        first = answers[0].header
        if names := first.buffers:
            self._state.take(dict(zip(names, answers[0].tensors[-len(names) :], strict=True)))
        if not self._brings and first.status != "held":  # what it has done to them since is still to count
            self._state.put_back(names)
        self._take_values(answers)
        self._version = first.step
        self._cut = first.cut
        return Verdict(first.status, first.step, first.staleness, first.stop)

    def _take_values(self, answers: Sequence[Message[PushAnswer]]) -> None:
        values = [answer.tensors for answer in answers]
        if names := answers[0].header.buffers:
            values[0] = values[0][: -len(names)]
        self._packing.unpack(values, self._client.in_place)

    def release(self) -> None:
        self._packing.release()
        if self._overlap is not None:
            self._overlap.close()

    abandon = release


def say_beginning(opened: DirectoryOpened, directory: str) -> None:
    """Where a training begins, for a person."""
    for note in opened.notes:
        say(note)
    if opened.checkpoint:
        say(f"goes on from step {opened.step}: {opened.checkpoint}")
    elif not opened.again:
        say(f"begins at step 0: no checkpoint in {directory}")
