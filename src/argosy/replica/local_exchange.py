"""The exchange of a cluster of one: the user's own optimizer steps, and nothing is in its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from argosy.modes import Local
from argosy.replica.chief_saving import ChiefSaving
from argosy.replica.exchange import Resumed, Training, Verdict, begin_from, parameters_of
from argosy.replica.moving_averages import MovingAverages
from argosy.replica.torch_state import TorchState
from argosy.replica.turn import Turn, clip, scale


class LocalExchange:
    """Plain PyTorch as an `Exchange`."""

    def __init__(self, clip_norm: float | None = None) -> None:
        self._clip_norm = clip_norm
        self._step = 0
        self._last_step: int | None = None
        self._saving: ChiefSaving | None = None
        self._state: TorchState | None = None
        self._averages = MovingAverages((), None)
        self.resumed = Resumed()
        self.keeps_state = False

    def watch(self, optimizer: torch.optim.Optimizer, begin: Callable[[], None]) -> None:
        """See `Exchange`. The first step is soon enough."""

    def start(self, optimizer: torch.optim.Optimizer, training: Training) -> Verdict:
        self._optimizer = optimizer
        self._training = training
        self._last_step = training.last_step
        self._averages = MovingAverages(self._parameters(), training.average)
        if training.keeping is not None:
            self._state = TorchState(training.model, optimizer)
            self._state.averages = self._averages.values
            self._saving = ChiefSaving(training, training.keeping, Local(), self._state)
            self.resumed, _ = self._saving.begin()
            begin_from(optimizer, training, self.resumed)
            self._step = self.resumed.step
        elif training.initial is not None:
            training.initial()
        if not self.resumed.step:
            self._averages.restart()
        return self._verdict()

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for _, parameter in parameters_of(self._optimizer)]

    def extend(self, first: int) -> None:
        if self._state is not None:
            self._state.restore_later(first)
        self._averages.extend(self._parameters())
        if self._state is not None:
            self._state.restore_averages(first)

    def step(self, turn: Turn) -> Verdict:
        self.give_state()
        if self._last_step is not None and self._step >= self._last_step:
            return Verdict("dropped", self._step, stop=True)
        self._training.loads.changed()  # refuses other parameters; other values are as good as these
        if turn.factor != 1.0 or self._clip_norm is not None:
            parameters = self._parameters()
            scale(parameters, turn.factor)
            clip(parameters, self._clip_norm)
        self._optimizer.step()
        self._step += 1
        self._averages.update(self._step)
        if self._saving is not None:
            self._saving.after_step(self._step)
        return Verdict("applied", self._step, stop=self._step == self._last_step)

    def skip(self) -> Verdict:
        return Verdict("skipped", self._step)

    def accumulate(self, waits: bool) -> None:
        """See `Exchange`. Nothing leaves before a step."""

    def hold(self, waits: bool, scaled: bool) -> None:
        """See `Exchange`."""

    def pull(self) -> Verdict:
        self._averages.take_out()
        return self._verdict()

    def pull_average(self) -> Verdict:
        self._averages.put_in()
        return self._verdict()

    def optimizer_state(self) -> None:
        """See `Exchange`."""

    def give_state(self) -> None:
        if self._saving is not None:
            self._saving.give_state(self._training.state)

    def wish(self, what: Literal["save", "stop"]) -> None:
        if what == "stop":
            self._last_step = min(self._last_step or self._step + 1, self._step + 1)
        elif self._saving is not None:
            self._saving.checkpoints.ask(self._step)

    def finish(self) -> Verdict:
        if self._saving is not None:
            self._saving.finish(self._step, self._training.state)
        return self._verdict()

    def release(self) -> None:
        if self._saving is not None:
            self._saving.close()

    abandon = release

    def _verdict(self) -> Verdict:
        stop = self._last_step is not None and self._step >= self._last_step
        return Verdict("pulled", self._step, stop=stop)
