"""The exchange of a cluster of one: the user's own optimizer steps, and nothing is in its way."""

from __future__ import annotations

import torch
from torch.nn.utils import clip_grad_norm_

from argosy.replica.exchange import Training, Verdict, parameters_of


class AloneExchange:
    """Plain PyTorch."""

    def __init__(self, clip_norm: float | None = None) -> None:
        self._clip_norm = clip_norm
        self._step = 0
        self._last_step: int | None = None

    def start(self, optimizer: torch.optim.Optimizer, training: Training) -> Verdict:
        """See `Exchange`."""
        self._optimizer = optimizer
        self._last_step = training.last_step
        return self._verdict()

    def step(self, weight: float, scale: float) -> Verdict:
        """See `Exchange`."""
        if self._last_step is not None and self._step >= self._last_step:
            return Verdict("dropped", self._step, stop=True)
        if scale != 1.0:
            gradients = [p.grad for _, p in parameters_of(self._optimizer) if p.grad is not None]
            torch._foreach_mul_(gradients, scale)
        if self._clip_norm is not None:
            clip_grad_norm_([p for _, p in parameters_of(self._optimizer)], self._clip_norm)
        self._optimizer.step()
        self._step += 1
        return Verdict("applied", self._step, stop=self._step == self._last_step)

    def skip(self) -> Verdict:
        """See `Exchange`."""
        return Verdict("skipped", self._step)

    def accumulate(self, waits: bool) -> None:
        """See `Exchange`. Nothing leaves before a step."""

    def pull(self) -> Verdict:
        """See `Exchange`."""
        return self._verdict()

    def release(self) -> None:
        """See `Exchange`."""

    def _verdict(self) -> Verdict:
        stop = self._last_step is not None and self._step >= self._last_step
        return Verdict("pulled", self._step, stop=stop)
