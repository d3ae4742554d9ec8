"""The learning rate of many replicas: so many times as high, and reached over the first steps.

The warm-up is a factor that holds only while a step is made. Between steps the groups have the rate that the
schedulers set, so those that compute the next rate from the present one never see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from argosy.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from argosy.replica.worker import Worker


def scale_learning_rate(optimizer: torch.optim.Optimizer, replica: Worker, warmup: int = 500) -> None:
    """Multiply the learning rate of every group by the number of replicas, after a warm-up.

    Call it once, before any scheduler is made: schedulers made after it work from the scaled rate. Over the
    first `warmup` global steps the rate of a step grows in a straight line from the one you gave to what the
    schedulers say. `optimizer`: what `replica.distribute()` gave, or the one that it will be given.
    """
    if warmup < 0:
        raise ConfigError("warmup", "a number of steps, 0 or more", warmup)
    for number, group in enumerate(optimizer.param_groups):
        if "initial_lr" in group:
            raise ConfigError(
                "scale_learning_rate",
                "an optimizer without a scheduler",
                f"one with a scheduler on group {number}",
                "create the scheduler after this call",
            )
    count = replica.count
    if count == 1:
        return
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * count
    if "lr" in optimizer.defaults:  # for groups that are added later
        optimizer.defaults["lr"] = optimizer.defaults["lr"] * count
    if warmup:
        factor = _Warmup(count, warmup)
        optimizer.register_step_pre_hook(factor.apply)
        optimizer.register_step_post_hook(factor.take_out)


class _Warmup:
    """From 1/count at step 0 to 1 at step `steps`."""

    def __init__(self, count: int, steps: int) -> None:
        self._count = count
        self._steps = steps
        self._made = 0  # steps, where nobody counts them for us
        self._rates: list[Any] | None = None

    def apply(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """A step is about to be made."""
        verdict = getattr(optimizer, "verdict", None)
        step = self._made if verdict is None else verdict.global_step
        self._made += 1
        if step < self._steps:
            low = 1 / self._count
            factor = low + (1 - low) * step / self._steps
            self._rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor

    def take_out(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """The step is made."""
        rates, self._rates = self._rates, None
        if rates is not None:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
