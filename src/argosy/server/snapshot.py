"""A copy of a shard for a checkpoint: taken between two updates, in memory that is used again."""

from __future__ import annotations

import torch

from argosy.checkpoint.index import part_name
from argosy.checkpoint.safetensors import Entry
from argosy.checkpoint.tensor_reader import Checkpoint
from argosy.errors import ConfigError
from argosy.protocol.layout import Layout, Piece
from argosy.server.shard import BlockState, Shard
from argosy.shared_memory.large_pages import empty_like
from argosy.store.ranges import count_at


class Snapshot:
    """The memory of the copies. `take` is all that training waits for; the rest is for whoever writes."""

    def __init__(self) -> None:
        self._copies: dict[tuple[int, str], torch.Tensor] = {}
        self._blocks: list[BlockState] = []

    def prepare(self, shard: Shard) -> None:
        """Get the memory before it is needed: the first copy into new memory takes three times as long."""
        for number, state in enumerate(shard.blocks()):
            for kind, tensor in state.tensors.items():
                if (number, kind) not in self._copies:
                    self._copies[number, kind] = empty_like(tensor).zero_()

    @torch.no_grad()
    def take(self, shard: Shard) -> None:
        """Copy everything as it is now; it stays until the next time."""
        blocks = list(shard.blocks())
        if sum(len(state.tensors) for state in blocks) != len(self._copies):
            self.prepare(shard)
        for number, state in enumerate(blocks):
            for kind, tensor in state.tensors.items():
                self._copies[number, kind].copy_(tensor)
        self._blocks = blocks

    def entries(self, layout: Layout) -> list[Entry]:
        """The pieces of the copy, by name."""
        entries: list[Entry] = []
        for number, state in enumerate(self._blocks):
            for kind in state.tensors:
                copy = self._copies[number, kind]
                for piece in state.pieces:
                    part = copy[piece.offset : piece.offset + piece.count]
                    entries.append(_entry(kind, part, piece, layout))
            entries += [_count(state, piece, layout) for piece in state.pieces]
        return entries


def _entry(kind: str, part: torch.Tensor, piece: Piece, layout: Layout) -> Entry:
    parameter = layout.parameters[piece.parameter]
    if piece.count == parameter.count:
        return Entry(f"{kind}/{parameter.name}", part.view(parameter.shape))
    return Entry(f"{kind}/{part_name(parameter.name, piece.start, piece.stop)}", part)


def _count(state: BlockState, piece: Piece, layout: Layout) -> Entry:
    """The count of updates of a piece, and which stretch it belongs to: equal counts need not be one."""
    parameter = layout.parameters[piece.parameter]
    count, number = count_at(state.steps, piece.offset, piece.offset + piece.count)
    whole = piece.count == parameter.count
    name = parameter.name if whole else part_name(parameter.name, piece.start, piece.stop)
    return Entry(f"step/{name}", torch.tensor([count, number], dtype=torch.float64))


@torch.no_grad()
def restore(shard: Shard, layout: Layout, checkpoint: Checkpoint, first: int, partly: bool = False) -> None:
    """Set the blocks from number `first` on to what a checkpoint has of them.

    `partly`: parameters that it does not have are left as they are, and not refused.
    """
    check_fits(layout, checkpoint, partly)
    for number, state in list(enumerate(shard.blocks()))[first:]:
        steps: list[tuple[int, int, float, float]] = []
        for piece in state.pieces:
            name = layout.parameters[piece.parameter].name
            for kind, tensor in state.tensors.items():
                # Averages that were not kept before begin where the parameters are.
                kept = "param" if kind == "average" and not checkpoint.has(kind, name) else kind
                if checkpoint.has(kept, name):
                    saved = checkpoint.elements(kept, name, piece.start, piece.stop)
                    tensor[piece.offset : piece.offset + piece.count].copy_(saved)
            count, stretch = checkpoint.steps(name, piece.start)
            steps.append((piece.offset, piece.offset + piece.count, count, stretch))
        shard.restore_steps(number, steps)


def check_fits(layout: Layout, checkpoint: Checkpoint, partly: bool = False) -> None:
    """Refuse a checkpoint of another model, by name."""
    saved = {parameter.name: parameter for parameter in checkpoint.index.parameters}
    remedy = "it is of another model: choose another directory"
    for parameter in layout.parameters:
        known = saved.get(parameter.name)
        if known is None and partly:
            continue
        if known is None:
            raise ConfigError(f"parameter {parameter.name}", f"it in {checkpoint.path}", "none", remedy)
        if known.shape != parameter.shape:
            raise ConfigError(
                f"parameter {parameter.name}",
                f"{list(known.shape)}, as in {checkpoint.path}",
                list(parameter.shape),
                remedy,
            )
