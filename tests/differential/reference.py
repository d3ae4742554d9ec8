"""What the pages promise of a program, computed by plain PyTorch in one process, one worker after the other.

Nothing of Argosy is used here. One model has the values that all workers have; `masters` are what the
optimizer steps, in full precision where servers keep them so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from allowing import HALF_WAVE, TOKENS
from feeding import dealt
from model_text import model_text, trained_text
from programs import Pass, Phase, Program, Turn
from torch import Tensor, nn

State: TypeAlias = dict[str, Tensor]
Gradient: TypeAlias = dict[str, Tensor]  # by name; a parameter without one is not in it
INF = float("inf")


@dataclass
class Final:
    """What one worker has at the end of a phase. `kept`: the optimizer's state, by parameter."""

    values: State
    verdicts: list[tuple[str, int]] = field(default_factory=list)
    average: State | None = None
    kept: dict[int, dict[str, Any]] | None = None
    seen: list[list[Tensor]] = field(default_factory=list)  # the model's state after each turn
    left: bool = False  # before the others: its last values may or may not have the step that this completes


@dataclass
class Ended:
    """How a phase ended: each worker, and what its last checkpoint holds."""

    workers: list[Final]
    saved: State | None = None
    saved_average: State | None = None


def reference(program: Program, orders: Sequence[Sequence[int]] = ()) -> list[Ended]:
    """How each phase ends. `orders`: the rows of each epoch in the order in which a loader deals them."""
    return _Training(program, orders).run()


@dataclass
class _Given:
    """A worker's part of a step: a gradient times its weight in the mean."""

    worker: int
    gradient: Gradient
    weight: float


class _Training:
    def __init__(self, program: Program, orders: Sequence[Sequence[int]]) -> None:
        self.program = program
        self.orders = orders
        namespace: dict[str, Any] = {"torch": torch, "nn": nn}
        exec(compile(model_text(program), "model", "exec"), namespace)
        self.data: Callable[[int, int, int, int], Tensor] = namespace["data"]
        self.model: nn.Module = namespace["fill"](namespace["Model"](), 0)
        trained = eval(trained_text(program), {"model": self.model})
        numbers = {id(p): name for name, p in self.model.named_parameters()}
        self.names = [numbers[id(p)] for p in trained]
        self.masters = {name: self._master(name) for name in self.names}
        self.optimizer = self._make_optimizer()
        self.scheduler = self._make_scheduler()
        self.averages: State = {}
        if program.average is not None:
            self.averages = {name: master.detach().clone() for name, master in self.masters.items()}
        self.step = 0
        self.latest: dict[int, State] = {}  # what each worker brought last of its buffers

    # --- making -------------------------------------------------------------------------------------------
    def _master(self, name: str) -> nn.Parameter:
        value = dict(self.model.named_parameters())[name].detach()
        half = value.dtype == torch.bfloat16 and self.program.phases[0].served
        return nn.Parameter(value.float() if half else value.clone())

    def _make_optimizer(self) -> torch.optim.Optimizer:
        program = self.program
        kind = getattr(torch.optim, program.optimizer)
        trained = list(self.masters.values())
        groups: Any = trained
        if program.groups == 2:
            groups = [{"params": trained[::2]}, {"params": trained[1::2], "lr": 0.05}]
        optimizer: torch.optim.Optimizer = kind(groups, **dict(program.options))
        if program.warm:
            for master in trained:
                master.grad = torch.full_like(master, 0.1)
            optimizer.step()
        return optimizer

    def _make_scheduler(self) -> torch.optim.lr_scheduler.LRScheduler | None:
        schedulers = torch.optim.lr_scheduler
        match self.program.scheduler:
            case "step":
                return schedulers.StepLR(self.optimizer, 2, gamma=0.5)
            case "exponential":
                return schedulers.ExponentialLR(self.optimizer, 0.8)
            case "cosine":
                return schedulers.CosineAnnealingLR(self.optimizer, T_max=HALF_WAVE)
            case _:
                return None

    # --- running ------------------------------------------------------------------------------------------
    def run(self) -> list[Ended]:
        return [self._phase(number, phase) for number, phase in enumerate(self.program.phases)]

    def _phase(self, number: int, phase: Phase) -> Ended:
        count = phase.workers
        self.number = number
        self.buffers = [self._own_buffers() for _ in range(count)]
        self.latest = {}
        self.common = self._own_buffers()
        finals: dict[int, Final] = {}
        verdicts: list[list[tuple[str, int]]] = [[] for _ in range(count)]
        self.seen: list[list[list[Tensor]]] = [[] for _ in range(count)]
        self.rounded: set[str] = set()  # what has come back with an answer: the first pull is not rounded
        for offset, turn in enumerate(phase.turns):
            if self.program.last_step is not None and self.step >= self.program.last_step:
                break
            here = [worker for worker in range(count) if turn.deeds[worker]]
            for worker in range(count):
                if worker not in here and worker not in finals:
                    finals[worker] = replace(self._final(worker, verdicts[worker]), left=True)
            if here:
                self._turn(phase, self.program.first_turn(number) + offset, turn, here, verdicts, finals)
        for worker in range(count):
            if worker not in finals or phase.way == "async":
                finals[worker] = self._final(worker, verdicts[worker])
        last = max(range(count), key=lambda worker: (len(verdicts[worker]), -worker))
        self._load_buffers(self.common if phase.served else self.buffers[last])
        saves = self.program.saves and self.step > 0  # nothing is written before the first update
        return Ended(
            [finals[worker] for worker in range(count)],
            self._state() if saves else None,
            self._state(self.averages) if saves and self.averages else None,
        )

    def _final(self, worker: int, verdicts: list[tuple[str, int]]) -> Final:
        self._load_buffers(self.buffers[worker])
        average = self._state(self.averages) if self.averages else None
        kept = None
        if self.program.reads:
            state = self.optimizer.state_dict()["state"]
            kept = {n: {k: _copy(v) for k, v in each.items()} for n, each in state.items()}
        return Final(self._state(), verdicts, average, kept, self.seen[worker])

    def _state(self, instead: Mapping[str, Tensor] | None = None) -> State:
        """The model's state with the masters' values, or others, in its own dtypes."""
        values = {**self.masters, **(instead or {})}
        first = {id(p): name for name, p in self.model.named_parameters()}
        state = {}
        for name, value in self.model.state_dict(keep_vars=True).items():
            source = values.get(first.get(id(value), name), value)
            state[name] = source.detach().to(value.dtype, copy=True)
        return state

    # --- a turn -------------------------------------------------------------------------------------------
    def _turn(
        self,
        phase: Phase,
        number: int,
        turn: Turn,
        here: Sequence[int],
        verdicts: list[list[tuple[str, int]]],
        finals: dict[int, Final],
    ) -> None:
        self._events(number)
        given: list[_Given] = []
        statuses: dict[int, list[str]] = {}
        waiting: dict[int, list[str]] = {}
        for worker in here:
            self._load_buffers(self.buffers[worker])
            statuses[worker] = self._deed(phase, number, turn, worker, given)
            self.buffers[worker] = self._own_buffers()
            if not statuses[worker] or (statuses[worker][-1] == "held" and phase.way != "tokens"):
                waiting[worker] = statuses.pop(worker)  # its data has ended before its accumulation
        for worker, held in waiting.items():
            verdicts[worker] += [(status, self.step) for status in held]
            finals.setdefault(worker, replace(self._final(worker, verdicts[worker]), left=True))
            self.latest.pop(worker, None)
        before = self.step
        infinite = any(not g.isfinite().all() for part in given for g in part.gradient.values())
        if infinite and self._is_mean(phase):  # every worker's scaler finds it in the mean
            for part in given:
                statuses[part.worker][-1] = "skipped"
            given = []
        if phase.way == "async":
            for part in given:
                self._update(phase, [part])
        elif given:
            self._update(phase, given)
        self._exchange_buffers(phase, given, [worker for worker in here if worker not in waiting])
        self.rounded = set(self.masters)
        for worker, words in statuses.items():
            verdicts[worker] += [(word, before) for word in words[:-1]]
            verdicts[worker] += [(words[-1], before if words[-1] == "held" else self.step)]
        self._watch(phase, [worker for worker, words in statuses.items() if words[-1] != "held"])
        if self.scheduler is not None and statuses:
            with warnings.catch_warnings():  # a first turn in which all skip is one
                warnings.simplefilter("ignore")
                self.scheduler.step()

    def _watch(self, phase: Phase, workers: Collection[int]) -> None:
        if self.program.watches:
            self._refresh(phase, self.rounded)
            for worker in workers:
                self._load_buffers(self.buffers[worker])
                self.seen[worker].append([value.clone() for value in self.model.state_dict().values()])

    def _events(self, number: int) -> None:
        program = self.program
        if program.thaw_at is not None:
            self.model.get_submodule("frozen").requires_grad_(number >= program.thaw_at)
        if program.freeze_at is not None:
            self.model.get_submodule("freezes").requires_grad_(number < program.freeze_at)
        if program.late_at is not None and number >= program.late_at and "late.weight" not in self.masters:
            fresh = {f"late.{name}": self._master(f"late.{name}") for name in ("weight", "bias")}
            self.masters |= fresh
            self.names += fresh
            self.rounded = set()  # all values come anew with it, and what is pulled is not rounded
            self.optimizer.add_param_group({"params": list(fresh.values()), "lr": 0.05})
            if program.average is not None:
                self.averages |= {name: value.detach().clone() for name, value in fresh.items()}

    # --- what a worker does -------------------------------------------------------------------------------
    def _deed(self, phase: Phase, number: int, turn: Turn, worker: int, given: list[_Given]) -> list[str]:
        """The statuses of a worker's calls; what it gives goes to `given`."""
        statuses: list[str] = []
        gathered: Gradient = {}
        passes, weight = 0, 0.0
        # An infinity that all find ends the turn before its last pass.
        whole = len(turn.deeds[worker]) if self.program.breaks_off(phase, turn) else turn.every
        self._refresh(phase, self.rounded)
        for place, each in enumerate(turn.deeds[worker]):
            if each.act == "skip":
                statuses.append("skipped")
                continue
            x = self._batch(number, place, worker, each)
            if each.discard:
                self._forward(x, each)
            if each.act != "none":
                _add(gathered, self._gradient(x, each, turn.every))
            if each.act == "add":
                continue
            if each.act == "undo" or (each.act == "inf" and not self._is_mean(phase)):
                statuses.append("skipped")
                continue
            passes, weight = passes + 1, weight + self._weight(phase, each, x)
            if phase.way == "tokens":
                if weight:
                    given.append(_Given(worker, self._sent(phase, gathered, 1.0), weight))
                statuses.append("skipped" if not weight else "applied" if place == TOKENS else "held")
                gathered, weight = {}, 0.0
                self._refresh(phase, set(self.masters))  # it is answered at once
            elif passes < whole and turn.deeds[worker][0].act != "add":
                statuses.append("held")
            elif not weight:
                statuses.append("skipped")  # what weighs nothing is
            else:
                parts = 1 if turn.deeds[worker][0].act == "add" else turn.every
                given.append(_Given(worker, self._sent(phase, gathered, parts), weight))
                statuses.append("applied")
        return statuses

    def _is_mean(self, phase: Phase) -> bool:
        """Whether a backward pass leaves the mean of all workers in `.grad`."""
        return phase.way == "ring" and self.program.averages_in_backward

    def _batch(self, number: int, place: int, worker: int, each: Pass) -> Tensor:
        if self.program.feed is None:
            return self.data(number, place, worker, each.size)
        which = self.number
        rows = dealt(self.program, self.orders, which, worker)[number - self.program.first_turn(which)]
        return torch.tensor(rows, dtype=torch.float64).view(-1, 1).expand(-1, 3) / 7

    def _weight(self, phase: Phase, each: Pass, x: Tensor) -> float:
        if not phase.weighted:
            return 1.0
        return float(len(x)) if each.weight is None else each.weight

    def _forward(self, x: Tensor, each: Pass) -> Tensor:
        found: Tensor = self.model(x, each.branch) if "branch" in self.program.parts else self.model(x)
        return found

    def _gradient(self, x: Tensor, each: Pass, every: int) -> Gradient:
        self.model.zero_grad()
        loss = self._forward(x, each)
        if each.act == "inf":
            loss = loss * INF
        if each.act == "add" or self._adds(every):
            loss = loss / every
        loss.backward()
        named = dict(self.model.named_parameters())
        return {n: g.to_dense().clone() for n in self.names if (g := named[n].grad) is not None}

    def _adds(self, every: int) -> bool:
        return every > 1 and any(each.act == "add" for each in self.program.passes)

    def _sent(self, phase: Phase, gathered: Gradient, parts: float) -> Gradient:
        """A worker's gradient as it is given: divided, clipped by the worker itself, rounded for the wire."""
        mine = {name: g / parts if parts != 1 else g.clone() for name, g in gathered.items()}
        if self.program.clip == "own" and not self._is_mean(phase):
            _clip(mine.values())
        if self.program.wire is not None and phase.far:
            wire = getattr(torch, self.program.wire)
            mine = {name: g.to(wire) for name, g in mine.items()}
        return {name: g.to(self.masters[name].dtype) for name, g in mine.items()}

    # --- what all make of it ------------------------------------------------------------------------------
    def _update(self, phase: Phase, given: Sequence[_Given]) -> None:
        total = sum(part.weight for part in given)
        if not total:
            return
        mean: Gradient = {}
        for part in given:
            _add(mean, {name: g.double() * part.weight for name, g in part.gradient.items()})
        # Rounded once: what cancels out in half precision is 0, of which some optimizers make much.
        mean = {name: (g / total).to(self.masters[name].dtype) for name, g in mean.items()}
        if self.program.clip == "norm" or (self.program.clip == "own" and self._is_mean(phase)):
            _clip(mean.values())
        for name, master in self.masters.items():
            master.grad = mean.get(name)
        self.optimizer.step()
        self.step += 1
        decay = self.program.average
        if decay is not None:
            decay = min(decay, (1.0 + self.step) / (10.0 + self.step))
            for name, value in self.averages.items():
                value.lerp_(self.masters[name].detach(), 1.0 - decay)

    def _exchange_buffers(self, phase: Phase, given: Sequence[_Given], here: Sequence[int]) -> None:
        """Everybody gets the chief's, or the mean of what each brought last, with every answer."""
        givers = {part.worker for part in given}
        if phase.way == "local" or not givers:
            return
        if self.program.buffers == "chief":
            if 0 in givers:
                self.common = {name: value.clone() for name, value in self.buffers[0].items()}
        else:
            self.latest |= {worker: self.buffers[worker] for worker in givers}
            self.latest = {worker: value for worker, value in self.latest.items() if worker in here}
            self.common = {
                name: _mean_buffer([b[name] for b in self.latest.values()]) for name in self.common
            }
        for worker in here:
            self.buffers[worker] = {name: value.clone() for name, value in self.common.items()}

    # --- values -------------------------------------------------------------------------------------------
    @torch.no_grad()
    def _refresh(self, phase: Phase, travelled: Collection[str]) -> None:
        """The workers' parameters become the masters', rounded if they have travelled in fewer bits."""
        named = dict(self.model.named_parameters())
        for name, master in self.masters.items():
            short = self.program.wire is not None and phase.far and name in travelled
            named[name].copy_(master.to(getattr(torch, self.program.wire or "")) if short else master)

    def _own_buffers(self) -> State:
        return {name: value.clone() for name, value in self.model.named_buffers()}

    @torch.no_grad()
    def _load_buffers(self, values: Mapping[str, Tensor]) -> None:
        for name, buffer in self.model.named_buffers():
            buffer.copy_(values[name])


def _add(total: Gradient, more: Mapping[str, Tensor]) -> None:
    for name, gradient in more.items():
        total[name] = total[name] + gradient if name in total else gradient


def _clip(gradients: Any) -> None:
    tensors = list(gradients)
    if tensors:
        holders = [nn.Parameter(torch.empty_like(g)) for g in tensors]
        for holder, gradient in zip(holders, tensors, strict=True):
            holder.grad = gradient
        nn.utils.clip_grad_norm_(holders, 0.3)


def _mean_buffer(values: Sequence[Tensor]) -> Tensor:
    stacked = torch.stack(list(values))
    return stacked.mean(dim=0) if stacked.dtype.is_floating_point else stacked.amax(dim=0)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
