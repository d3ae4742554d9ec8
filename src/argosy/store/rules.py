"""The update rules that servers run: torch's own kernels, called directly on flat tensors.

A rule names its *slots* (the state it keeps for each element, under torch's names) and applies one update to
a list of runs. `torch.optim`'s classes do the same around the same kernels, but per parameter, with hooks,
and with an import of torch's compiler that takes longer than everything else a server does to start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias, cast

import torch

Values: TypeAlias = Mapping[str, Any]


class Run:
    """A stretch of a flat block whose elements have always been updated together."""

    __slots__ = ("parameter", "slots", "start", "step", "stop")

    def __init__(
        self,
        start: int,
        stop: int,
        parameter: torch.Tensor,
        slots: dict[str, torch.Tensor],
        step: torch.Tensor,
    ) -> None:
        self.start = start
        self.stop = stop
        self.parameter = parameter
        self.slots = slots
        self.step = step

    def split(self, bounds: Sequence[int]) -> list[Run]:
        """This run in parts; each goes on with its own slice of the slots, and its own count of steps."""
        parts = []
        for start, stop in pairwise(bounds):
            span = slice(start - self.start, stop - self.start)
            slots = {name: slot[span] for name, slot in self.slots.items()}
            parts.append(Run(start, stop, self.parameter[span], slots, self.step.clone()))
        return parts


Apply: TypeAlias = Callable[[Sequence[Run], list[torch.Tensor], Values], None]


@dataclass(frozen=True)
class Rule:
    """`needs`: the hyperparameters that must be given. `slots`: each slot's name and first value."""

    needs: frozenset[str]
    slots: Callable[[Values], dict[str, float]]
    apply: Apply


def _parameters(runs: Sequence[Run]) -> list[torch.Tensor]:
    return [run.parameter for run in runs]


def _slot(runs: Sequence[Run], name: str) -> list[torch.Tensor]:
    return [run.slots[name] for run in runs]


def _counted(runs: Sequence[Run]) -> list[torch.Tensor]:
    return [run.step.add_(1) for run in runs]


def _adam_slots(values: Values) -> dict[str, float]:
    slots = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
    return {**slots, "max_exp_avg_sq": 0.0} if values["amsgrad"] else slots


def _adam_with(kernel: Any) -> Apply:
    def apply(runs: Sequence[Run], gradients: list[torch.Tensor], values: Values) -> None:
        decoupled = values.get("decoupled_weight_decay", False)
        (torch._fused_adamw_ if decoupled else kernel)(
            _parameters(runs),
            gradients,
            _slot(runs, "exp_avg"),
            _slot(runs, "exp_avg_sq"),
            _slot(runs, "max_exp_avg_sq") if values["amsgrad"] else [],
            _counted(runs),
            lr=values["lr"],
            beta1=values["betas"][0],
            beta2=values["betas"][1],
            weight_decay=values["weight_decay"],
            eps=values["eps"],
            amsgrad=values["amsgrad"],
            maximize=values["maximize"],
        )

    return apply


def _sgd(runs: Sequence[Run], gradients: list[torch.Tensor], values: Values) -> None:
    """The first update of a run fills its momentum with the gradient, without dampening."""
    for first in (True, False) if values["momentum"] else (False,):
        pairs = list(zip(runs, gradients, strict=True))
        if values["momentum"]:
            pairs = [(run, gradient) for run, gradient in pairs if (run.step.item() == 0) is first]
        if not pairs:
            continue
        chosen = [run for run, _ in pairs]
        torch._fused_sgd_(
            _parameters(chosen),
            [gradient for _, gradient in pairs],
            _slot(chosen, "momentum_buffer") if values["momentum"] else [],
            weight_decay=values["weight_decay"],
            momentum=values["momentum"],
            lr=values["lr"],
            dampening=values["dampening"],
            nesterov=values["nesterov"],
            maximize=values["maximize"],
            is_first_step=first,
        )
    if values["momentum"]:
        _counted(runs)


def _adagrad(runs: Sequence[Run], gradients: list[torch.Tensor], values: Values) -> None:
    torch._fused_adagrad_(
        _parameters(runs),
        gradients,
        _slot(runs, "sum"),
        _counted(runs),
        lr=values["lr"],
        lr_decay=values["lr_decay"],
        weight_decay=values["weight_decay"],
        eps=values["eps"],
        maximize=values["maximize"],
    )


def _rmsprop_slots(values: Values) -> dict[str, float]:
    names = ["square_avg"]
    names += ["momentum_buffer"] if values["momentum"] else []
    names += ["grad_avg"] if values["centered"] else []
    return dict.fromkeys(names, 0.0)


def _rmsprop(runs: Sequence[Run], gradients: list[torch.Tensor], values: Values) -> None:
    from torch.optim.rmsprop import rmsprop

    rmsprop(
        _parameters(runs),
        gradients,
        _slot(runs, "square_avg"),
        _slot(runs, "grad_avg") if values["centered"] else [],
        _slot(runs, "momentum_buffer") if values["momentum"] else [],
        [run.step for run in runs],
        foreach=False,
        lr=cast(float, values["lr"]),
        alpha=values["alpha"],
        eps=values["eps"],
        weight_decay=values["weight_decay"],
        momentum=values["momentum"],
        centered=values["centered"],
        maximize=values["maximize"],
    )


_ADAM = frozenset({"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"})
RULES: dict[str, Rule] = {
    "Adam": Rule(_ADAM, _adam_slots, _adam_with(torch._fused_adam_)),
    "AdamW": Rule(_ADAM, _adam_slots, _adam_with(torch._fused_adamw_)),
    "SGD": Rule(
        frozenset({"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"}),
        lambda values: {"momentum_buffer": 0.0} if values["momentum"] else {},
        _sgd,
    ),
    "Adagrad": Rule(
        frozenset({"lr", "lr_decay", "weight_decay", "eps", "maximize", "initial_accumulator_value"}),
        lambda values: {"sum": values["initial_accumulator_value"]},
        _adagrad,
    ),
    "RMSprop": Rule(
        frozenset({"lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize"}),
        _rmsprop_slots,
        _rmsprop,
    ),
}
