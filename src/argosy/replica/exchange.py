"""The seam between a replica and how it works together with others: gradients in, fresh parameters out.

One exchange a way of working: servers, the ring, alone. Switching is one argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from argosy.modes import BufferRule
from argosy.update.decisions import Status


@dataclass(frozen=True)
class Verdict:
    """What became of a gradient.

    `status`: "applied"; "dropped", it came too late; "folded", it came late and went into the next step;
    "duplicate", it had been answered before; "skipped", there was none; "held", it waits for the step that
    is being collected, or for the rest of an accumulation; "pulled", nothing was pushed. `staleness`: the
    updates between the pull that it was computed from and its application. `global_step`: the updates of
    the whole job so far. `stop`: whether the job has reached its last step.
    """

    status: Status
    global_step: int
    staleness: int = 0
    stop: bool = False


@dataclass(frozen=True)
class Training:
    """What is trained, and until when: what a session knows when it begins."""

    model: nn.Module | None
    last_step: int | None = None
    buffer_rule: BufferRule = "chief"


class Exchange(Protocol):
    """How one replica's gradients become everybody's parameters."""

    def start(self, optimizer: torch.optim.Optimizer, training: Training) -> Verdict:
        """Begin: the parameters become the chief's."""

    def step(self, weight: float, scale: float) -> Verdict:
        """Give the gradients, times `scale` and with this weight in the mean; get fresh parameters."""

    def skip(self) -> Verdict:
        """Give nothing to this step, hold nobody up, get fresh parameters."""

    def accumulate(self, waits: bool) -> None:
        """Whether the next backward pass is not the last one before a step."""

    def pull(self) -> Verdict:
        """Get fresh parameters."""

    def release(self) -> None:
        """The last step is done: the parameters get memory of their own."""


def parameters_of(optimizer: torch.optim.Optimizer) -> list[tuple[int, nn.Parameter]]:
    """Every parameter of an optimizer with the number of its group, in order."""
    return [
        (number, parameter)
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
    ]


def names_of(model: nn.Module | None, parameters: Sequence[tuple[int, nn.Parameter]]) -> list[str]:
    """A name for each parameter: the model's, or its place in the optimizer."""
    known = {} if model is None else {id(p): name for name, p in model.named_parameters()}
    counts: dict[int, int] = {}
    names = []
    for group, parameter in parameters:
        place = counts.get(group, 0)
        counts[group] = place + 1
        names.append(known.get(id(parameter), f"group{group}.{place}"))
    return names
