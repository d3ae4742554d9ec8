"""Keeps gradients that are not finite away from the parameters, and says so."""

from __future__ import annotations

import time
from typing import Any, Literal

import torch
from torch import Tensor

from argosy.errors import ConfigError, NotFinite
from argosy.events import say
from argosy.session.hook import Hook
from argosy.session.session import Session
from argosy.torch_private import foreach_norm, sparse_values

# Said so often at most, in seconds; what was skipped meanwhile is counted.
SAY_EVERY = 10.0


class NanGuard(Hook):
    """Looks at every gradient, and at the loss that is logged, before it is given.

    `action="stop"`: the job ends with an error that names the worker, the step and the first parameter whose
    gradient is not finite. `action="skip"`: this worker gives nothing to the step, holds nobody up, and says
    so. A loss is logged when its step is over: one that is not finite though its gradient was stops the job,
    or is only told of.
    """

    def __init__(self, action: Literal["stop", "skip"] = "stop") -> None:
        if action not in ("stop", "skip"):
            raise ConfigError("NanGuard(action)", "stop or skip", repr(action))
        self.action = action
        self.skipped = 0
        self._unsaid = 0
        self._said_at = -SAY_EVERY
        self._seen: dict[str, Any] = {}

    def begin(self, session: Session) -> None:
        """Names for the parameters, once."""
        model = session.model
        self._names = {} if model is None else {id(p): name for name, p in model.named_parameters()}

    def before_step(self, session: Session) -> None:
        """Look at the gradients that are about to be given."""
        self._check_loss(session)
        parameters = [
            parameter
            for group in session.optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        gradients = [sparse_values(p.grad) if p.grad.is_sparse else p.grad for p in parameters]
        if _surely_finite(gradients):
            return
        for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            if not bool(gradient.isfinite().all()):
                name = self._names.get(id(parameter), f"parameter {place}")
                self._act(session, f"the gradient of {name}", _worst(gradient))
                return

    def _check_loss(self, session: Session) -> None:
        """Each loss once; that of a step which was skipped has been told of."""
        logged, self._seen = self._seen, session.logged
        if self._seen is logged or session.verdict.status == "skipped" or "loss" not in self._seen:
            return
        value = session.numbers("loss")["loss"]
        if value - value != 0:  # neither infinity nor NaN is 0 apart from itself
            if self.action == "stop":
                raise NotFinite(session.replica.task, session.global_step, "the loss", f"{value}")
            self._say(session, f"the loss is {value}, though its gradient was finite; nothing is skipped")

    def _act(self, session: Session, what: str, value: str) -> None:
        step = session.global_step
        if self.action == "stop":
            raise NotFinite(session.replica.task, step, what, value)
        session.skip_step()
        self.skipped += 1
        self._unsaid += 1
        times = f" ({self._unsaid} times since this was last said)" if self._unsaid > 1 else ""
        self._say(session, f"{what} has {value}, so this worker skips the step{times}")

    def _say(self, session: Session, text: str) -> None:
        now = time.monotonic()
        if now - self._said_at >= SAY_EVERY:
            self._said_at = now
            self._unsaid = 0
            say(f"{session.replica.task}, step {session.global_step}: {text}")

    def end(self, session: Session) -> None:
        """How many there were in all."""
        if self.skipped:
            say(f"{session.replica.task} skipped {self.skipped} steps because its gradients were not finite")


def _surely_finite(gradients: list[Tensor]) -> bool:
    """One number a gradient tells: what is not finite stays so in any sum.

    A sum of large numbers may overflow though they are finite: then the answer is no, and a closer look is
    needed. On the CPU a sum takes half as long as a norm, and a thirtieth of `isfinite` on every number.
    """
    with torch.no_grad():
        if gradients and gradients[0].is_cuda:
            return bool(torch.stack([norm.float() for norm in foreach_norm(gradients)]).isfinite().all())
        return all(bool(gradient.sum().isfinite()) for gradient in gradients)


def _worst(gradient: Tensor) -> str:
    nan = int(gradient.isnan().sum())
    infinite = int(gradient.isinf().sum())
    found = [f"{count} {word}" for count, word in ((nan, "NaN"), (infinite, "infinite")) if count]
    return f"{' and '.join(found)} of {gradient.numel()} values"
