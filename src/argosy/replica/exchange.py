"""The seam between a replica and how it works together with others: gradients in, fresh parameters out.

One exchange a way of working: servers, the ring, alone. Switching is one argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec
import torch
from torch import nn

from argosy.modes import BufferRule
from argosy.protocol.decisions import Status
from argosy.protocol.saving import CarriedState
from argosy.replica.hyperparameters import take_groups
from argosy.replica.loaded_values import Loads
from argosy.replica.turn import Turn


class Verdict(msgspec.Struct, frozen=True):
    """What became of a gradient.

    `status`: "applied"; "dropped", it came too late; "folded", it came late and went into the next step;
    "skipped", there was none; "held", it waits for the step that is being collected, or for the rest of an
    accumulation; "pulled", nothing was pushed. `staleness`: the updates between the pull that it was
    computed from and its application. `global_step`: the updates of the whole job so far. `stop`: whether
    the job has reached its last step.
    """

    status: Status
    global_step: int
    staleness: int = 0
    stop: bool = False


@dataclass(frozen=True)
class Keeping:
    """Where checkpoints are kept: the newest `keep`, one every `save_every` steps."""

    directory: str
    save_every: int | None = None
    keep: int = 5


@dataclass(frozen=True)
class Resumed:
    """From where a training goes on: `state` is this replica's own, `groups` the saved hyperparameters.

    `chiefs`: the chief's own state, where all replicas must scale their losses alike. `carried`: what the
    pushes of a process before have carried, whose place this one takes.
    """

    step: int = 0
    state: bytes = b""
    groups: tuple[dict[str, Any], ...] | None = None
    chiefs: bytes = b""
    carried: CarriedState | None = None


NOTHING_LOGGED: tuple[dict[str, float], int] = ({}, 0)


@dataclass(frozen=True)
class Training:
    """What is trained, and until when: what a session knows when it begins.

    `initial`: sets the model to what it begins from when there is no checkpoint. `average`: the decay of
    moving averages. `state`: gives this replica's own state, to be saved. `hyperparameters`: whose count
    when a training is resumed.
    """

    model: nn.Module | None
    last_step: int | None = None
    buffer_rule: BufferRule = "chief"
    keeping: Keeping | None = None
    average: float | None = None
    initial: Callable[[], None] | None = None
    state: Callable[[], bytes] = bytes
    hyperparameters: Literal["checkpoint", "script"] = "checkpoint"
    # What was logged, and at which step, when the servers should hear of it.
    numbers: Callable[[], tuple[dict[str, float], int]] = lambda: NOTHING_LOGGED
    batches: Callable[[], int] = int  # with a gradient: a checksum of the first batches, once
    # At every turn, whether it is pushed: what the push carries for a process that may take this one's place.
    carried: Callable[[bool], CarriedState | None] | None = None
    loads: Loads = field(default_factory=Loads)  # what the script loads into the model meanwhile


class Exchange(Protocol):
    """How one replica's gradients become everybody's parameters."""

    resumed: Resumed  # known once it has begun
    keeps_state: bool  # whether it, and not the optimizer, has the optimizer's state then

    def watch(self, optimizer: torch.optim.Optimizer, begin: Callable[[], None]) -> None:
        """Called once, when the optimizer is distributed: `begin` starts a training without a session."""

    def start(self, optimizer: torch.optim.Optimizer, training: Training) -> Verdict:
        """Begin: the parameters become the chief's."""

    def extend(self, first: int) -> None:
        """The optimizer has more parameters now, from number `first` on: they get what was saved of them, or
        the chief's values, and are trained too.
        """

    def step(self, turn: Turn) -> Verdict:
        """Give the gradients, get fresh parameters: see `Turn` for what a step means."""

    def skip(self) -> Verdict:
        """Give nothing to this step, hold nobody up, get fresh parameters."""

    def accumulate(self, waits: bool) -> None:
        """Whether the next backward pass is not the last one before a step."""

    def hold(self, waits: bool, scaled: bool) -> None:
        """Nor was the one that has just been made: its gradients wait for the rest. `scaled`: see `Turn`."""

    def pull(self) -> Verdict:
        """Get fresh parameters."""

    def pull_average(self) -> Verdict:
        """Get the moving averages in place of the parameters; `pull` brings these back."""

    def optimizer_state(self) -> dict[int, dict[str, Any]] | None:
        """What the optimizer keeps of each parameter, by number, as torch has it; None: it has it itself."""

    def give_state(self) -> None:
        """Give this replica's own state, if a step was saved and waits for it: before the next batch."""

    def wish(self, what: Literal["save", "stop"]) -> None:
        """With the next step: save the state soon, or end the job."""

    def finish(self) -> Verdict:
        """The last step is done: get the final parameters."""

    def release(self) -> None:
        """The parameters get memory of their own."""

    def abandon(self) -> None:
        """The training has failed: the same, without a word to anybody."""


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


def tied_names(model: nn.Module | None) -> dict[str, str]:
    """Every further name of a parameter or buffer in a model's `state_dict`, and its first name."""
    if model is None:
        return {}
    first: dict[int, str] = {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    saved = model.state_dict(keep_vars=True)
    tied = {}
    for name, tensor in named:
        if name in saved and first.setdefault(id(tensor), name) != name:
            tied[name] = first[id(tensor)]
    return tied


def begin_from(optimizer: torch.optim.Optimizer, training: Training, resumed: Resumed) -> None:
    """Give the optimizer the hyperparameters that were saved, unless the script's are to count."""
    if resumed.groups is not None and training.hyperparameters == "checkpoint":
        take_groups(optimizer, resumed.groups)
