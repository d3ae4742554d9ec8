"""Moving averages of parameters that this process has itself: alone, and in a ring."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from argosy.store.update_rules import decay_at
from argosy.torch_private import foreach_copy_, foreach_lerp_


class MovingAverages:
    """`values` is empty if none are kept."""

    def __init__(self, parameters: Sequence[torch.Tensor], decay: float | None) -> None:
        self._parameters: list[torch.Tensor] = []
        self._decay = decay
        self.values: list[torch.Tensor] = []
        self._aside: list[torch.Tensor] = []  # the parameters, while the averages are in their place
        self.extend(parameters)

    def extend(self, parameters: Sequence[torch.Tensor]) -> None:
        """These are all parameters now: averages of new ones begin where they are."""
        if self._decay is None:
            return
        fresh = list(parameters)[len(self._parameters) :]
        self._parameters += fresh
        self.values += [parameter.detach().clone() for parameter in fresh]
        if self._aside:
            self._aside += [parameter.detach().clone() for parameter in fresh]

    @torch.no_grad()
    def restart(self) -> None:
        """Begin where the parameters are now."""
        if self.values:
            foreach_copy_(self.values, self._parameters)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """A step has been made."""
        if self.values:
            assert self._decay is not None
            foreach_lerp_(self.values, self._parameters, 1.0 - decay_at(self._decay, step))

    @torch.no_grad()
    def put_in(self) -> None:
        """Put the averages in the parameters' place."""
        if self.values and not self._aside:
            self._aside = [parameter.detach().clone() for parameter in self._parameters]
            foreach_copy_(self._parameters, self.values)

    @torch.no_grad()
    def take_out(self) -> None:
        """The parameters are themselves again."""
        if self._aside:
            foreach_copy_(self._parameters, self._aside)
            self._aside = []
