"""The same parameters twice: on shards, flat, and in torch, one by one. They must stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from argosy.protocol.layout import Layout, ParameterSpec, extend
from argosy.server.gradient_sums import Gradient
from argosy.server.shard import Shard
from argosy.store.optimizers import describe, groups_of
from argosy.store.placement import Greedy, UserPlacement, place
from argosy.wire.tensor_bytes import dtype_name, torch_dtype

Optimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
WorkerGradient = Sequence[torch.Tensor | None]


def pack(layout: Layout, values: WorkerGradient, server: int) -> list[torch.Tensor]:
    """The blocks of a server with these values; what is None is noise, which nobody may read."""
    mine = {number: layout.blocks[number] for number in layout.blocks_of(server)}
    blocks = {
        number: torch.full((block.count,), 5e4, dtype=torch_dtype(block.dtype))
        for number, block in mine.items()
    }
    for piece in layout.pieces:
        value = values[piece.parameter]
        if piece.block in blocks and value is not None:
            flat = value.detach().reshape(-1)
            blocks[piece.block][piece.offset : piece.offset + piece.count] = flat[piece.start : piece.stop]
    return list(blocks.values())


class Twins:
    """Shards on some servers, and a torch optimizer on ordinary parameters beside them."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        optimizer: Optimizer,
        *,
        groups: Sequence[int] | None = None,
        servers: int = 1,
        placement: UserPlacement | None = None,
        dtype: torch.dtype = torch.float32,
        master: torch.dtype = torch.float32,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.groups = list(groups or [0] * len(shapes))
        values = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        self.parameters = [value.to(master, copy=True) for value in values]
        self.generator = generator
        self.dtype = dtype
        members: list[dict[str, Any]] = [{"params": []} for _ in range(max(self.groups) + 1)]
        for group, parameter in zip(self.groups, self.parameters, strict=True):
            members[group]["params"].append(parameter)
        self.reference = optimizer(members)
        specs = [
            ParameterSpec(f"p{number}", tuple(shape), dtype_name(dtype), group)
            for number, (shape, group) in enumerate(zip(shapes, self.groups, strict=True))
        ]
        shares = place(placement or Greedy(), specs, [0] * servers)
        self.layout = extend(Layout(), specs, shares)
        self.shards = [Shard(server) for server in range(servers)]
        for server, shard in enumerate(self.shards):
            shard.extend(self.layout, describe(self.reference), pack(self.layout, values, server))

    def gradient(self, absent: Sequence[int] = ()) -> list[torch.Tensor | None]:
        """A worker's gradient."""
        return [
            None if number in absent else torch.randn(p.shape, generator=self.generator).to(self.dtype)
            for number, p in enumerate(self.parameters)
        ]

    def step(self, gradients: Sequence[WorkerGradient], weights: Sequence[float] | None = None) -> None:
        """One update of both."""
        weights = weights or [1.0] * len(gradients)
        for server, shard in enumerate(self.shards):
            shard.reduce(
                [(self.accepted(shard, server, g), w) for g, w in zip(gradients, weights, strict=True)]
            )
            shard.update(groups_of(self.reference))
        for number, parameter in enumerate(self.parameters):
            there = [(g[number], w) for g, w in zip(gradients, weights, strict=True)]
            parts = [value.to(parameter.dtype) * weight for value, weight in there if value is not None]
            parameter.grad = torch.stack(parts).sum(0) / sum(weights) if parts else None
        self.reference.step()

    def accepted(self, shard: Shard, server: int, gradient: WorkerGradient) -> Gradient:
        absent = [number for number, value in enumerate(gradient) if value is None]
        return shard.accept(pack(self.layout, gradient, server), absent)

    def values(self) -> list[torch.Tensor]:
        """The parameters as the shards have them."""
        result = [torch.empty(p.numel(), dtype=self.dtype) for p in self.parameters]
        for server, shard in enumerate(self.shards):
            blocks = dict(zip(self.layout.blocks_of(server), shard.values(), strict=True))
            for piece in self.layout.pieces:
                if piece.block in blocks:
                    source = blocks[piece.block][piece.offset : piece.offset + piece.count]
                    result[piece.parameter][piece.start : piece.stop] = source
        return [flat.view(p.shape) for flat, p in zip(result, self.parameters, strict=True)]

    def check(self) -> None:
        """They are the same."""
        for mine, theirs in zip(self.values(), self.parameters, strict=True):
            torch.testing.assert_close(mine, theirs.to(self.dtype), rtol=2e-5, atol=2e-6)
