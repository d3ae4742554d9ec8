"""Sums of gradients, always in the same order, into memory that belongs to the server.

The order of the parts is the order of the sum, so that it has the same bits however they arrived. The part
of it that is sure to come first may be added early, while the rest is still on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import torch

from argosy.shared_memory.large_pages import empty_like
from argosy.store.ranges import Range, complement


class Gradient(msgspec.Struct, frozen=True, eq=False):
    """A worker's gradient on this server: a tensor a block, and the parameters that have none.

    `exact`: each block has its master's dtype.
    """

    blocks: Sequence[torch.Tensor]
    absent: frozenset[int] = frozenset()
    exact: bool = False

    def copy(self) -> Gradient:
        """The same in memory of its own."""
        return Gradient([block.clone() for block in self.blocks], self.absent, self.exact)


# A gradient, its weight, and the ranges of the block at hand in which it has nothing.
Part: TypeAlias = tuple[Gradient, float, Sequence[Range]]


class GradientSums:
    """An accumulator for each block of a shard, made when it is first needed."""

    def __init__(self) -> None:
        self._blocks: dict[int, torch.Tensor] = {}
        self._early: list[Gradient] = []

    def add_early(self, gradient: Gradient, masters: Sequence[torch.Tensor]) -> None:
        """Add a whole gradient of weight 1 that will be the next in order."""
        for position, master in enumerate(masters):
            block = gradient.blocks[position]
            if self._early:
                self._blocks[position].add_(block)
            else:
                self._accumulator(position, master).copy_(block)
        self._early.append(gradient)

    def forget(self) -> None:
        """What was added early is added once more, if it is to be in a sum: there are other blocks now."""
        self._early = []

    def begin(self, order: Sequence[tuple[Gradient, float]]) -> int:
        """How many of these are in the sums already: all that were added early, or none if others came."""
        if not self._early:
            return 0
        early, self._early = self._early, []
        agrees = len(early) <= len(order) and all(
            mine is theirs and weight == 1.0 for mine, (theirs, weight) in zip(early, order, strict=False)
        )
        return len(early) if agrees else 0

    def mean(
        self, position: int, master: torch.Tensor, parts: Sequence[Part], total: float, summed: int
    ) -> torch.Tensor:
        """The sum of the parts, of which the first `summed` are in it already, divided by `total`."""
        if len(parts) == 1 and parts[0][1] == total:
            block = parts[0][0].blocks[position]
            return block if block.dtype == master.dtype else block.to(master.dtype)
        sums = self._accumulator(position, master)
        if len(parts) == 2 and not parts[0][2] and not parts[1][2]:
            # Two are not worth adding early: their mean takes one pass over the memory, and no sum.
            (one, its_weight, _), (other, other_weight, _) = parts
            first, second = one.blocks[position], other.blocks[position]
            if first.dtype == second.dtype == sums.dtype:
                return torch.lerp(first, second, other_weight / total, out=sums)
            # A plain number would be multiplied in half precision, and rounded; the smallest even by a half.
            torch.mul(first, sums.new_tensor([its_weight / total]), out=sums)
            return sums.add_(second, alpha=other_weight / total)
        for place, (gradient, weight, holes) in enumerate(parts[summed:], start=summed):
            block = gradient.blocks[position]
            if holes:
                if place == 0:
                    sums.zero_()
                for start, stop in complement(holes, block.numel()):
                    sums[start:stop].add_(block[start:stop], alpha=weight)
            elif place == 0:
                sums.copy_(block).mul_(weight) if weight != 1.0 else sums.copy_(block)
            else:
                sums.add_(block, alpha=weight)
        return sums.mul_(1.0 / total)

    def _accumulator(self, position: int, master: torch.Tensor) -> torch.Tensor:
        if position not in self._blocks:
            self._blocks[position] = empty_like(master)
        return self._blocks[position]
