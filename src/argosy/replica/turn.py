"""What a step means, for every exchange alike.

1. Given: each replica gives the sum of its backward passes, or nothing (`skip`).
2. Divided and unscaled: the sum is divided by the number of passes, and the loss scale is taken out.
3. Averaged: the mean of all who give, by their weights where the mode has some.
4. Clipped: by `clip_norm`, the norm of the whole mean.
5. Applied: by the optimizer, once, with the same gradient everywhere.
6. Counted: the global step is one higher, averages and checkpoints follow. If nobody gives, nothing is
   applied and nothing counted.

Where `.grad` is the mean before `step` is called, in the ring, 2 follows 3: it is linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from argosy.torch_private import foreach_mul_


class Turn(NamedTuple):
    """What a replica gives to a step: the sum of `passes` gradients, of a loss times 1 / `unscale`."""

    passes: int = 1
    unscale: float = 1.0
    weight: float = 1.0
    scaled: bool = False  # by a GradScaler, which looks for infinities in `.grad` before each call of `step`

    @property
    def factor(self) -> float:
        """What makes of `.grad` the mean gradient of the loss."""
        return self.unscale / self.passes


def gradients_of(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those that are there."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def scale(parameters: Iterable[torch.Tensor], factor: float) -> None:
    """Multiply their gradients in place."""
    if factor != 1.0 and (gradients := gradients_of(parameters)):
        foreach_mul_(gradients, factor)


def clip(parameters: Iterable[torch.Tensor], most: float | None) -> None:
    """Make the norm of all their gradients `most` at most, in place, as torch's `clip_grad_norm_`."""
    if most is not None and (gradients := gradients_of(parameters)):
        _clip(gradients, most)


@torch.no_grad()
def _clip(gradients: Sequence[torch.Tensor], most: float) -> None:
    whole = [each.coalesce() if each.is_sparse else each for each in gradients]
    norm = torch.nn.utils.get_total_norm([each.values() if each.is_sparse else each for each in whole])
    factor = torch.clamp(most / (norm + 1e-6), max=1.0)
    for each in gradients:
        each.mul_(factor.to(each.device))
