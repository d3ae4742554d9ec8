"""One server's share of the parameters: flat blocks, their optimizer, and sums of gradients. No sockets.

The shard owns the masters (float32 for half-precision models) and one accumulator a block. Gradients belong
to whoever brought them and are only read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from argosy.errors import WireError
from argosy.protocol.fields import Group
from argosy.protocol.joining import OptimizerSpec
from argosy.protocol.layout import Layout, Piece
from argosy.server.durable_memory import Memory, OrdinaryMemory
from argosy.server.flat_optimizer import FlatOptimizer
from argosy.server.gradient_sums import Gradient, GradientSums, Part
from argosy.server.update_guard import UpdateGuard, chunk_of, spans_of
from argosy.store.ranges import Range, complement, intersection, merged
from argosy.store.update_rules import decay_at
from argosy.torch_private import foreach_lerp_
from argosy.wire.tensor_bytes import torch_dtype

_HALF = frozenset({torch.float16, torch.bfloat16})


def _nothing() -> None:
    """A part that was changed before needs no more."""


@dataclass(frozen=True)
class BlockState:
    """All that is kept of a block, as it is now: `tensors` by kind, `steps` as (start, stop, updates)."""

    pieces: list[Piece]
    tensors: dict[str, torch.Tensor]
    steps: list[tuple[int, int, float]]


class Shard:
    """The blocks of one server, in its memory. `average`: the decay of moving averages, if they are kept."""

    def __init__(self, server: int, memory: Memory | None = None) -> None:
        self._server = server
        self._memory = memory or OrdinaryMemory()
        self.average: float | None = None
        self._averages: list[torch.Tensor] = []
        self._numbers: list[int] = []  # of this server's blocks, in the layout
        self._pieces: list[list[Piece]] = []
        self._groups: list[int] = []
        self._dtypes: list[torch.dtype] = []
        self._masters: list[torch.Tensor] = []
        self._shortened = False  # whether a model's dtype is shorter than its master's
        self._sums = GradientSums()
        self._means: dict[int, torch.Tensor] = {}  # by position; none where no gradient has the block
        self._absent: list[list[Range]] = []
        self._nothing: list[list[Range]] = []  # as `_absent` is when nothing is
        self._averaged = 0  # how many blocks there were when the means were made
        self._whole = False  # whether the means cover everything
        self._optimizers: list[tuple[int, list[int], FlatOptimizer]] = []  # group, positions, optimizer
        self._values: dict[torch.dtype | None, list[torch.Tensor]] = {}

    def extend(
        self, layout: Layout, spec: OptimizerSpec, values: Sequence[torch.Tensor] | None = None
    ) -> None:
        """Take in the blocks of `layout` that are new, with these values; without, as the memory has them."""
        fresh = [number for number in layout.blocks_of(self._server) if number not in self._numbers]
        recalled = values is None
        if values is None:
            counts = [layout.blocks[number] for number in fresh]
            values = [torch.empty(block.count, dtype=torch_dtype(block.dtype)) for block in counts]
        else:
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
            self._masters.append(self._kept(f"{number}/param", value.to(master), recalled))
            self._nothing.append([])
            self._shortened |= master != dtype
            if self.average is not None:
                self._averages.append(self._kept(f"{number}/average", self._masters[-1], recalled))
        for group in sorted(set(self._groups[first:])):
            positions = [p for p in range(first, len(self._groups)) if self._groups[p] == group]
            masters = [self._masters[p] for p in positions]
            names = [str(self._numbers[p]) for p in positions]
            optimizer = FlatOptimizer(spec.name, spec.groups[group], masters, self._memory, names, recalled)
            self._optimizers.append((group, positions, optimizer))
        self._values = {}
        self._sums.forget()

    def _kept(self, name: str, value: torch.Tensor, recalled: bool) -> torch.Tensor:
        """The tensor of this name, with this value or, if it is recalled, as it was left."""
        tensor, found = self._memory.tensor(name, value)
        return tensor if found and recalled else tensor.copy_(value)

    def _check(self, numbers: Sequence[int], layout: Layout, values: Sequence[torch.Tensor]) -> None:
        counts = [layout.blocks[number].count for number in numbers]
        if [value.numel() for value in values] != counts:
            raise WireError(f"values: expected blocks of {counts}, got {[v.numel() for v in values]}")

    def begin_from(
        self,
        first: int,
        slots: Mapping[str, Sequence[torch.Tensor]],
        steps: Sequence[Sequence[tuple[int, int, float]]],
    ) -> None:
        """The optimizer has seen the blocks from number `first` on before: what it kept of each, by name, and
        how many updates were made to which stretch of it. An empty tensor: nothing of that name.
        """
        by_position = self._optimizer_of()
        fresh = range(first, self.count)
        if any(len(each) != len(fresh) for each in (steps, *slots.values())):
            raise WireError(f"optimizer's state: expected it for {len(fresh)} blocks, got {len(steps)}")
        for position, counts in zip(fresh, steps, strict=True):
            optimizer, number = by_position[position]
            size = self._masters[position].numel()
            edges = [edge for start, stop, _ in counts for edge in (start, stop)]
            if [0, *edges[1:-1:2]] != edges[::2] or edges[-1:] != [size]:
                raise WireError(f"optimizer's state: expected counts for {size} elements, got {counts}")
            for name, tensors in slots.items():
                self._fill_slot(optimizer.slots(number), name, tensors[position - first], size)
            self.restore_steps(position, [(start, stop, count, 0.0) for start, stop, count in counts])

    @staticmethod
    def _fill_slot(slots: Mapping[str, torch.Tensor], name: str, value: torch.Tensor, size: int) -> None:
        if not value.numel():
            return
        if name not in slots or value.numel() != size:
            known = ", ".join(slots)
            raise WireError(f"optimizer's state: expected {size} of {known}, got {value.numel()} of {name}")
        slots[name].copy_(value.view(-1))

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
        flat = [tensor if tensor.dim() == 1 else tensor.view(-1) for tensor in tensors]
        exact = all(block.dtype == m.dtype for block, m in zip(flat, self._masters, strict=False))
        return Gradient(flat, frozenset(absent), exact)

    @property
    def count(self) -> int:
        """The number of blocks."""
        return len(self._masters)

    def add_early(self, gradient: Gradient) -> None:
        """Add a gradient that will be the next in the sum, whatever else comes."""
        self._sums.add_early(gradient, self._masters)

    def is_whole(self, gradient: Gradient) -> bool:
        """Whether a gradient covers everything on this server."""
        return not gradient.absent and len(gradient.blocks) == len(self._masters)

    def reduce(self, parts: Sequence[tuple[Gradient, float]]) -> None:
        """The weighted mean of gradients, in the order given; a parameter that one lacks counts as zero."""
        summed = self._sums.begin(parts)
        self._averaged = len(self._masters)
        if len(parts) == 1 and self.is_whole(parts[0][0]):  # asynchronous training
            gradient = parts[0][0]
            pairs = zip(gradient.blocks, self._masters, strict=True)
            blocks = gradient.blocks if gradient.exact else [block.to(m.dtype) for block, m in pairs]
            self._means = dict(enumerate(blocks))
            self._absent = self._nothing
            self._whole = True
            return
        total = sum(weight for _, weight in parts)
        self._whole = all(self.is_whole(gradient) for gradient, _ in parts)
        if self._whole:  # as nearly always
            whole: list[Part] = [(gradient, weight, ()) for gradient, weight in parts]
            masters = enumerate(self._masters)
            self._means = {place: self._sums.mean(place, m, whole, total, summed) for place, m in masters}
            self._absent = self._nothing
            return
        self._means = {}
        self._absent = []
        for position, master in enumerate(self._masters):
            present = [
                (gradient, weight, self._missing(position, gradient))
                for gradient, weight in parts
                if position < len(gradient.blocks) and not self._is_empty(position, gradient)
            ]
            self._absent.append(intersection([holes for *_, holes in present]) if present else [])
            if present:
                self._means[position] = self._sums.mean(position, master, present, total, summed)

    def _is_empty(self, position: int, gradient: Gradient) -> bool:
        """Whether a parameter of no elements has no gradient, either."""
        pieces = self._pieces[position]
        return not self._masters[position].numel() and pieces[0].parameter in gradient.absent

    def _missing(self, position: int, gradient: Gradient) -> list[Range]:
        if not gradient.absent:
            return []
        pieces = [piece for piece in self._pieces[position] if piece.parameter in gradient.absent]
        return merged([(piece.offset, piece.offset + piece.count) for piece in pieces])

    def square(self) -> float:
        """The squared norm of the mean gradient on this server."""
        total = 0.0
        for position, mean in self._means.items():
            for start, stop in complement(self._absent[position], mean.numel()):
                total += float(torch.linalg.vector_norm(mean[start:stop], dtype=torch.float64)) ** 2
        return total

    def blocks(self) -> Iterable[BlockState]:
        """Every block with all that is kept of it."""
        by_position = self._optimizer_of()
        for position, master in enumerate(self._masters):
            optimizer, number = by_position[position]
            tensors = {"param": master}
            tensors |= {f"slot/{name}": slot for name, slot in optimizer.slots(number).items()}
            if self._averages:
                tensors["average"] = self._averages[position]
            yield BlockState(self._pieces[position], tensors, optimizer.steps(number))

    def _optimizer_of(self) -> dict[int, tuple[FlatOptimizer, int]]:
        """Of each block, its optimizer and its number there."""
        return {p: (o, n) for _, ps, o in self._optimizers for n, p in enumerate(ps)}

    def restore_steps(self, position: int, steps: Iterable[tuple[int, int, float, float]]) -> None:
        """The tensors of a block hold what was saved, and so many updates were made; see `FlatOptimizer`."""
        for _, positions, optimizer in self._optimizers:
            if position in positions:
                optimizer.restore(positions.index(position), steps)
        self._values = {}

    def averages(self) -> list[torch.Tensor]:
        """A copy of the moving averages in the model's dtypes."""
        pairs = zip(self._averages or self._masters, self._dtypes, strict=True)
        return [average.to(dtype, copy=True) for average, dtype in pairs]

    def update(self, groups: Sequence[Group] | None, factor: float = 1.0, step: int = 0) -> None:
        """Step the optimizers on the mean gradient, times `factor`, with these hyperparameters."""
        guard = self._memory.guard
        if guard is not None:
            guard.begin(step)
        means = self._means
        if factor != 1.0:
            means = {position: mean * factor for position, mean in means.items()}
        for group, positions, optimizer in self._optimizers:
            if positions[0] >= self._averaged:  # it came while the norm of the mean was awaited
                continue
            if groups is not None and group < len(groups):
                optimizer.configure(groups[group])
            if self._whole:
                optimizer.update_whole([means[position] for position in positions])
            else:
                absent = [self._absent[position] for position in positions]
                optimizer.update([means.get(position) for position in positions], absent)
        if self.average is not None and self._averages:  # a server may keep nothing
            self._move_averages(guard, 1.0 - decay_at(self.average, step))
        self._means = {}
        self._values = {}

    def _move_averages(self, guard: UpdateGuard | None, weight: float) -> None:
        if guard is None:
            foreach_lerp_(self._averages, self._masters, weight)
            return
        for average, master in zip(self._averages, self._masters, strict=True):
            size = chunk_of([average])
            for start in range(0, average.numel(), size):
                part, towards = average[start : start + size], master[start : start + size]
                guard.change(spans_of([part]), partial(foreach_lerp_, [part], [towards], weight), _nothing)

    def counts(self) -> list[list[tuple[int, int, float]]]:
        """Of each block, the updates so far of each stretch: start, stop, count."""
        by_position = self._optimizer_of()
        return [o.steps(n) for o, n in (by_position[p] for p in range(self.count))]

    def recall(self, counts: Sequence[Sequence[tuple[int, int, float]]], groups: Sequence[Group]) -> None:
        """Go on where an earlier process of this server was: with these counts and hyperparameters."""
        for group, _, optimizer in self._optimizers:
            if group < len(groups):
                optimizer.configure(groups[group])
        for position, steps in enumerate(counts):
            self.restore_steps(position, [(*each, float(place)) for place, each in enumerate(steps)])

    def live(self) -> list[torch.Tensor]:
        """The parameters themselves in the model's dtypes: to be copied before the next update."""
        return self.values() if self._shortened else self._masters

    def values(self, wire: torch.dtype | None = None) -> list[torch.Tensor]:
        """A copy of the parameters in the model's dtypes, or all in one; made once a step, and only read."""
        if wire not in self._values:
            pairs = zip(self._masters, self._dtypes, strict=True)
            self._values[wire] = [master.to(wire or dtype, copy=True) for master, dtype in pairs]
        return self._values[wire]
