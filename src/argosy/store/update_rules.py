"""The update rules that servers run: torch's own kernels, called directly on flat tensors.

A rule names its *slots* (the state it keeps for each element, under torch's names) and is bound to a list of
runs once; what that gives is called at every update, with nothing left to look up. `torch.optim`'s classes do
the same around the same kernels, but per parameter, with hooks, and with an import of torch's compiler that
takes longer than everything else a server does to start.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from argosy.torch_private import fused_adagrad_, fused_adam_, fused_adamw_, fused_sgd_

Values: TypeAlias = Mapping[str, Any]


class Stretch:
    """A stretch of a flat block whose elements have always been updated together, and how often."""

    __slots__ = ("_updates", "parameter", "slots", "start", "step", "stop")

    def __init__(
        self,
        start: int,
        stop: int,
        parameter: torch.Tensor,
        slots: dict[str, torch.Tensor],
        updates: float,
    ) -> None:
        self.start = start
        self.stop = stop
        self.parameter = parameter
        self.slots = slots
        # The kernels read the count from a tensor. To add to that is an operation of torch's, which takes
        # longer than to write to its memory.
        self._updates = array("f", [updates])
        self.step = torch.frombuffer(self._updates, dtype=torch.float32).view(())

    @property
    def updates(self) -> float:
        """The updates so far."""
        return self._updates[0]

    def count(self) -> None:
        """There is one more."""
        self._updates[0] += 1.0

    def follow(self, part: Stretch) -> None:
        """A part of this, updated with all the others, has been updated so often."""
        self._updates[0] = part.updates

    def whole(self) -> Stretch:
        """All of this as a part, which has its own count of steps."""
        return Stretch(self.start, self.stop, self.parameter, self.slots, self.updates)

    def split(self, bounds: Sequence[int]) -> list[Stretch]:
        """This run in parts; each goes on with its own slice of the slots, and its own count of steps."""
        parts = []
        for start, stop in pairwise(bounds):
            span = slice(start - self.start, stop - self.start)
            slots = {name: slot[span] for name, slot in self.slots.items()}
            parts.append(Stretch(start, stop, self.parameter[span], slots, self.updates))
        return parts


# Applies a gradient for each run.
Update: TypeAlias = Callable[[list[torch.Tensor]], None]
Bind: TypeAlias = Callable[[Sequence[Stretch], Values], Update]


@dataclass(frozen=True)
class Rule:
    """`needs`: the hyperparameters that must be given. `slots`: each slot's name and first value.

    `counts`: whether an update is counted.
    """

    needs: frozenset[str]
    slots: Callable[[Values], dict[str, float]]
    bind: Bind
    counts: Callable[[Values], bool] = lambda values: True


def _parameters(runs: Sequence[Stretch]) -> list[torch.Tensor]:
    return [run.parameter for run in runs]


def _slot(runs: Sequence[Stretch], name: str) -> list[torch.Tensor]:
    return [run.slots[name] for run in runs]


def _steps(runs: Sequence[Stretch]) -> list[torch.Tensor]:
    return [run.step for run in runs]


def _adam_slots(values: Values) -> dict[str, float]:
    slots = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
    return {**slots, "max_exp_avg_sq": 0.0} if values["amsgrad"] else slots


def _adam_with(kernel: Any) -> Bind:
    def bind(runs: Sequence[Stretch], values: Values) -> Update:
        call = partial(
            fused_adamw_ if values.get("decoupled_weight_decay", False) else kernel,
            lr=values["lr"],
            beta1=values["betas"][0],
            beta2=values["betas"][1],
            weight_decay=values["weight_decay"],
            eps=values["eps"],
            amsgrad=values["amsgrad"],
            maximize=values["maximize"],
        )
        parameters, steps = _parameters(runs), _steps(runs)
        means, squares = _slot(runs, "exp_avg"), _slot(runs, "exp_avg_sq")
        largest = _slot(runs, "max_exp_avg_sq") if values["amsgrad"] else []

        def update(gradients: list[torch.Tensor]) -> None:
            for run in runs:
                run.count()
            call(parameters, gradients, means, squares, largest, steps)

        return update

    return bind


def _sgd(runs: Sequence[Stretch], values: Values) -> Update:
    call = partial(
        fused_sgd_,
        weight_decay=values["weight_decay"],
        momentum=values["momentum"],
        lr=values["lr"],
        dampening=values["dampening"],
        nesterov=values["nesterov"],
        maximize=values["maximize"],
    )
    parameters = _parameters(runs)
    if not values["momentum"]:
        return lambda gradients: call(parameters, gradients, [], is_first_step=False)

    def update(gradients: list[torch.Tensor]) -> None:
        """The first update of a run fills its momentum with the gradient, without dampening."""
        for first in (True, False):
            places = [place for place, run in enumerate(runs) if (run.updates == 0) is first]
            if places:
                call(
                    [parameters[place] for place in places],
                    [gradients[place] for place in places],
                    [runs[place].slots["momentum_buffer"] for place in places],
                    is_first_step=first,
                )
        for run in runs:
            run.count()

    return update


def _adagrad(runs: Sequence[Stretch], values: Values) -> Update:
    parameters, sums, steps = _parameters(runs), _slot(runs, "sum"), _steps(runs)

    def update(gradients: list[torch.Tensor]) -> None:
        for run in runs:
            run.count()
        fused_adagrad_(
            parameters,
            gradients,
            sums,
            steps,
            lr=values["lr"],
            lr_decay=values["lr_decay"],
            weight_decay=values["weight_decay"],
            eps=values["eps"],
            maximize=values["maximize"],
        )

    return update


def _rmsprop_slots(values: Values) -> dict[str, float]:
    names = ["square_avg"]
    names += ["momentum_buffer"] if values["momentum"] else []
    names += ["grad_avg"] if values["centered"] else []
    return dict.fromkeys(names, 0.0)


def _rmsprop(runs: Sequence[Stretch], values: Values) -> Update:
    from torch.optim.rmsprop import rmsprop

    parameters, squares, steps = _parameters(runs), _slot(runs, "square_avg"), _steps(runs)
    means = _slot(runs, "grad_avg") if values["centered"] else []
    momenta = _slot(runs, "momentum_buffer") if values["momentum"] else []

    def update(gradients: list[torch.Tensor]) -> None:
        rmsprop(  # counts for itself
            parameters,
            gradients,
            squares,
            means,
            momenta,
            steps,
            foreach=False,
            lr=values["lr"],
            alpha=values["alpha"],
            eps=values["eps"],
            weight_decay=values["weight_decay"],
            momentum=values["momentum"],
            centered=values["centered"],
            maximize=values["maximize"],
        )

    return update


_ADAM = frozenset({"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"})
RULES: dict[str, Rule] = {
    "Adam": Rule(_ADAM, _adam_slots, _adam_with(fused_adam_)),
    "AdamW": Rule(_ADAM, _adam_slots, _adam_with(fused_adamw_)),
    "SGD": Rule(
        frozenset({"lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"}),
        lambda values: {"momentum_buffer": 0.0} if values["momentum"] else {},
        _sgd,
        lambda values: bool(values["momentum"]),
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


def decay_at(decay: float, step: int) -> float:
    """The decay at a step: smaller in the first ones, so that the average is not tied to where it began."""
    return min(decay, (1.0 + step) / (10.0 + step))
