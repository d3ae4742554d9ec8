"""What an accumulation has gathered, while GradScaler may change its scale between two backward passes.

`scaler.update()` has to follow every `scaler.step()`, so the scale may grow in the middle of an accumulation.
The next pass then adds to gradients of another scale. The optimizer keeps here what there was before that
pass, and brings it to the new scale when it is told of it, which is after the pass.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


class HeldGradients:
    """Copies of what was held last, and the loss scale that is in them; nothing without a GradScaler."""

    def __init__(self) -> None:
        self._scale: float | None = None
        self._copies: list[torch.Tensor | None] = []

    def keep(self, parameters: Iterable[torch.Tensor], scale: float | None) -> None:
        """Their gradients are held; `scale` is None if none is in them."""
        self._scale = scale
        gradients = [parameter.grad for parameter in parameters] if scale is not None else []
        self._copies = [None if gradient is None else gradient.clone() for gradient in gradients]

    def clear(self) -> None:
        """The accumulation has ended."""
        self._scale, self._copies = None, []

    def differs(self, scale: float | None) -> bool:
        """Whether what is held has another scale than the pass after it."""
        return None not in (self._scale, scale) and scale != self._scale

    @torch.no_grad()
    def rescale(self, parameters: Iterable[torch.Tensor], scale: float) -> None:
        """The pass that was added to what was kept has this scale: give it to all."""
        assert self._scale is not None
        for parameter, copy in zip(parameters, self._copies, strict=False):  # a group may have joined since
            if copy is not None and parameter.grad is not None:
                parameter.grad.add_(copy, alpha=scale / self._scale - 1.0)
