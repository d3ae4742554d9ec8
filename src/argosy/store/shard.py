"""One server's share of the parameters: flat blocks, their optimizer, and sums of gradients. No sockets.

The shard owns the masters (float32 for half-precision models) and one accumulator a block. Gradients belong
to whoever brought them and are only read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from argosy.errors import WireError
from argosy.store.flat_optimizer import FlatOptimizer, Range
from argosy.store.layout import Layout, Piece
from argosy.wire.protocol import Group, OptimizerSpec
from argosy.wire.tensors import torch_dtype

_HALF = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True)
class Gradient:
    """A worker's gradient on this server: a tensor a block, and the parameters that have none."""

    blocks: Sequence[torch.Tensor]
    absent: frozenset[int] = frozenset()

    def copy(self) -> Gradient:
        """The same in memory of its own."""
        return Gradient([block.clone() for block in self.blocks], self.absent)


class Shard:
    """The blocks of one server."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._numbers: list[int] = []  # of this server's blocks, in the layout
        self._pieces: list[list[Piece]] = []
        self._groups: list[int] = []
        self._dtypes: list[torch.dtype] = []
        self._masters: list[torch.Tensor] = []
        self._sums: list[torch.Tensor] = []
        self._means: list[torch.Tensor | None] = []
        self._absent: list[list[Range]] = []
        self._optimizers: list[tuple[int, list[int], FlatOptimizer]] = []  # group, positions, optimizer
        self._values: list[torch.Tensor] | None = None

    def extend(self, layout: Layout, spec: OptimizerSpec, values: Sequence[torch.Tensor]) -> None:
        """Take in the blocks of `layout` that are new, with these values."""
        fresh = [number for number in layout.blocks_of(self._server) if number not in self._numbers]
        self._check(fresh, layout, values)
        pieces = layout.pieces_by_block()
        first = len(self._numbers)
        for number, value in zip(fresh, values, strict=True):
            block = layout.blocks[number]
            dtype = torch_dtype(block.dtype)
            master = torch.float32 if dtype in _HALF else dtype
            self._numbers.append(number)
            self._pieces.append(pieces[number])
            self._groups.append(block.group)
            self._dtypes.append(dtype)
            self._masters.append(value.to(master, copy=True))
            self._sums.append(torch.empty(0))
        for group in sorted(set(self._groups[first:])):
            positions = [p for p in range(first, len(self._groups)) if self._groups[p] == group]
            masters = [self._masters[p] for p in positions]
            self._optimizers.append((group, positions, FlatOptimizer(spec.name, spec.groups[group], masters)))
        self._values = None

    def _check(self, numbers: Sequence[int], layout: Layout, values: Sequence[torch.Tensor]) -> None:
        counts = [layout.blocks[number].count for number in numbers]
        if [value.numel() for value in values] != counts:
            raise WireError(f"values: expected blocks of {counts}, got {[v.numel() for v in values]}")

    def accept(self, tensors: Sequence[torch.Tensor], absent: Sequence[int]) -> Gradient:
        """A gradient of these tensors; blocks that its worker does not know yet are absent."""
        if len(tensors) > len(self._masters):
            raise WireError(f"gradient: expected at most {len(self._masters)} blocks, got {len(tensors)}")
        for position, tensor in enumerate(tensors):
            expected = self._masters[position].numel()
            if tensor.numel() != expected or not tensor.dtype.is_floating_point:
                raise WireError(
                    f"block {position}: expected {expected} floats, got {tensor.numel()} of {tensor.dtype}"
                )
        return Gradient([tensor.view(-1) for tensor in tensors], frozenset(absent))

    def reduce(self, parts: Sequence[tuple[Gradient, float]]) -> None:
        """The weighted mean of gradients, in the order given; a parameter that one lacks counts as zero."""
        self._means = []
        self._absent = []
        for position in range(len(self._masters)):
            present = [(g, w) for g, w in parts if position < len(g.blocks)]
            missing = [self._missing(position, gradient) for gradient, _ in present]
            self._absent.append(_intersection(missing) if present else [])
            self._means.append(self._mean(position, present, missing, sum(weight for _, weight in parts)))

    def _missing(self, position: int, gradient: Gradient) -> list[Range]:
        if not gradient.absent:
            return []
        pieces = [piece for piece in self._pieces[position] if piece.parameter in gradient.absent]
        return _merged([(piece.offset, piece.offset + piece.count) for piece in pieces])

    def _mean(
        self,
        position: int,
        present: Sequence[tuple[Gradient, float]],
        missing: Sequence[Sequence[Range]],
        total: float,
    ) -> torch.Tensor | None:
        if not present:
            return None
        dtype = self._masters[position].dtype
        if len(present) == 1 and present[0][1] == total:
            return present[0][0].blocks[position].to(dtype)
        sums = self._accumulator(position)
        sums.zero_()
        for (gradient, weight), holes in zip(present, missing, strict=True):
            block = gradient.blocks[position]
            for start, stop in _complement(holes, block.numel()):
                sums[start:stop].add_(block[start:stop], alpha=weight)
        return sums.mul_(1.0 / total)

    def _accumulator(self, position: int) -> torch.Tensor:
        if not self._sums[position].numel():
            self._sums[position] = torch.empty_like(self._masters[position])
        return self._sums[position]

    def square(self) -> float:
        """The squared norm of the mean gradient on this server."""
        total = 0.0
        for mean, holes in zip(self._means, self._absent, strict=True):
            if mean is not None:
                for start, stop in _complement(holes, mean.numel()):
                    total += float(torch.linalg.vector_norm(mean[start:stop], dtype=torch.float64)) ** 2
        return total

    def update(self, groups: Sequence[Group] | None, factor: float = 1.0) -> None:
        """Step the optimizers on the mean gradient, times `factor`, with these hyperparameters."""
        for group, positions, optimizer in self._optimizers:
            if groups is not None and group < len(groups):
                optimizer.configure(groups[group])
            means = [self._means[position] for position in positions]
            if factor != 1.0:
                means = [None if mean is None else mean * factor for mean in means]
            if any(mean is not None for mean in means):
                optimizer.update(means, [self._absent[position] for position in positions])
        self._means = []
        self._values = None

    def live(self) -> list[torch.Tensor]:
        """The parameters themselves in the model's dtypes: to be copied before the next update."""
        if all(m.dtype == dtype for m, dtype in zip(self._masters, self._dtypes, strict=True)):
            return self._masters
        return self.values()

    def values(self) -> list[torch.Tensor]:
        """A copy of the parameters in the model's dtypes; made once a step, and never written to."""
        if self._values is None:
            pairs = zip(self._masters, self._dtypes, strict=True)
            self._values = [master.to(dtype, copy=True) for master, dtype in pairs]
        return self._values


def _merged(ranges: Sequence[Range]) -> list[Range]:
    """Ranges in order, those that touch made one."""
    result: list[Range] = []
    for start, stop in sorted(ranges):
        if result and result[-1][1] >= start:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        elif start < stop:
            result.append((start, stop))
    return result


def _complement(ranges: Sequence[Range], count: int) -> list[Range]:
    """What is left of 0 to `count` without these ordered ranges."""
    edges = [0, *(edge for pair in ranges for edge in pair), count]
    return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]


def _intersection(many: Sequence[Sequence[Range]]) -> list[Range]:
    """What lies in all of these lists of ordered ranges."""
    common = list(many[0])
    for ranges in many[1:]:
        common = [(max(a, c), min(b, d)) for a, b in common for c, d in ranges if max(a, c) < min(b, d)]
    return common
