"""The exchange of a cluster of one: the user's own optimizer steps, and nothing is in its way."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn.utils import clip_grad_norm_

from argosy.modes import Local
from argosy.replica.exchange import Resumed, Training, Verdict, parameters_of, take_groups
from argosy.replica.own_saving import OwnSaving
from argosy.replica.torch_state import TorchState
from argosy.store.averages import decay_at


class AloneExchange:
    """Plain PyTorch."""

    def __init__(self, clip_norm: float | None = None) -> None:
        self._clip_norm = clip_norm
        self._step = 0
        self._last_step: int | None = None
        self._saving: OwnSaving | None = None
        self._averages: list[torch.Tensor] = []
        self._aside: list[torch.Tensor] = []  # the parameters, while the averages are in their place
        self.resumed = Resumed()

    def start(self, optimizer: torch.optim.Optimizer, training: Training) -> Verdict:
        """See `Exchange`."""
        self._optimizer = optimizer
        self._training = training
        self._last_step = training.last_step
        if training.average is not None:
            self._averages = [parameter.detach().clone() for parameter in self._parameters()]
        if training.keeping is not None:
            state = TorchState(training.model, optimizer)
            state.averages = self._averages
            self._saving = OwnSaving(training, training.keeping, Local(), state)
            self.resumed, _ = self._saving.begin()
            take_groups(optimizer, training, self.resumed)
            self._step = self.resumed.step
        elif training.initial is not None:
            training.initial()
        if self._averages and not self.resumed.step:
            with torch.no_grad():
                torch._foreach_copy_(self._averages, self._parameters())
        return self._verdict()

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for _, parameter in parameters_of(self._optimizer)]

    def step(self, weight: float, scale: float) -> Verdict:
        """See `Exchange`."""
        self.give_state()
        if self._last_step is not None and self._step >= self._last_step:
            return Verdict("dropped", self._step, stop=True)
        if scale != 1.0:
            gradients = [p.grad for p in self._parameters() if p.grad is not None]
            torch._foreach_mul_(gradients, scale)
        if self._clip_norm is not None:
            clip_grad_norm_(self._parameters(), self._clip_norm)
        self._optimizer.step()
        self._step += 1
        if self._averages and self._training.average is not None:
            decay = decay_at(self._training.average, self._step)
            with torch.no_grad():
                torch._foreach_lerp_(self._averages, self._parameters(), 1.0 - decay)
        if self._saving is not None:
            self._saving.after_step(self._step)
        return Verdict("applied", self._step, stop=self._step == self._last_step)

    def _states(self) -> dict[int, bytes]:
        return {0: self._training.state()}

    def skip(self) -> Verdict:
        """See `Exchange`."""
        return Verdict("skipped", self._step)

    @torch.no_grad()
    def pull(self) -> Verdict:
        """See `Exchange`."""
        if self._aside:
            torch._foreach_copy_(self._parameters(), self._aside)
            self._aside = []
        return self._verdict()

    @torch.no_grad()
    def pull_average(self) -> Verdict:
        """See `Exchange`."""
        if self._averages and not self._aside:
            self._aside = [parameter.detach().clone() for parameter in self._parameters()]
            torch._foreach_copy_(self._parameters(), self._averages)
        return self._verdict()

    def optimizer_state(self) -> None:
        """See `Exchange`."""

    def give_state(self) -> None:
        """See `Exchange`."""
        if self._saving is not None and self._saving.wants_states:
            self._saving.give_states(self._states())

    def wish(self, what: Literal["save", "stop"]) -> None:
        """See `Exchange`."""
        if what == "stop":
            self._last_step = min(self._last_step or self._step + 1, self._step + 1)
        elif self._saving is not None:
            self._saving.cuts.ask(self._step)

    def finish(self) -> Verdict:
        """See `Exchange`."""
        if self._saving is not None:
            self._saving.finish(self._step, self._states())
        return self._verdict()

    def release(self) -> None:
        """See `Exchange`."""
        if self._saving is not None:
            self._saving.close()

    def _verdict(self) -> Verdict:
        stop = self._last_step is not None and self._step >= self._last_step
        return Verdict("pulled", self._step, stop=stop)
