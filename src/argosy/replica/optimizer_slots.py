"""Between the servers' slots, which are flat, and the state of each parameter as torch has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from argosy.protocol.joining import OptimizerSpec
from argosy.protocol.layout import Layout
from argosy.store.ranges import count_at
from argosy.store.update_rules import RULES
from argosy.wire.tensor_bytes import torch_dtype


def gather_slots(
    found: dict[int, dict[str, Any]],
    layout: Layout,
    block: int,
    slots: Mapping[str, torch.Tensor],
    steps: Sequence[tuple[int, int, float]],
) -> None:
    """Add what a block holds to `found`: by parameter, each slot in the parameter's shape, and its count."""
    for piece in layout.pieces_by_block()[block]:
        parameter = layout.parameters[piece.parameter]
        count, _ = count_at(steps, piece.offset, piece.offset + piece.count)
        if not count and "sum" not in slots:  # no update so far: torch has no state, either, but for Adagrad
            continue
        state = found.setdefault(piece.parameter, {"step": torch.tensor(count)})
        for name, slot in slots.items():
            whole = state.setdefault(name, torch.zeros(parameter.shape, dtype=slot.dtype))
            part = slot[piece.offset : piece.offset + piece.count]
            whole.view(-1)[piece.start : piece.stop].copy_(part)


State = Mapping[str, Any]
Steps = tuple[tuple[int, int, float], ...]


def spread_slots(
    layout: Layout, blocks: Sequence[int], states: Sequence[State], spec: OptimizerSpec
) -> tuple[dict[str, list[torch.Tensor]], tuple[Steps, ...]]:
    """Torch's state of each parameter as the slots of these blocks, by name, and each block's counts.

    A block that has no slot of a name has an empty tensor there.
    """
    rule = RULES[spec.name]
    firsts = [rule.slots(spec.groups[layout.blocks[number].group]) for number in blocks]
    slots: dict[str, list[torch.Tensor]] = {}
    for name in sorted({name for each in firsts for name in each}):
        slots[name] = [
            _spread(layout, number, states, name, each[name]) if name in each else torch.empty(0)
            for number, each in zip(blocks, firsts, strict=True)
        ]
    return slots, tuple(_counts(layout, number, states) for number in blocks)


def _spread(layout: Layout, block: int, states: Sequence[State], name: str, first: float) -> torch.Tensor:
    flat = torch.full((layout.blocks[block].count,), first, dtype=torch_dtype(layout.blocks[block].dtype))
    for piece in layout.pieces_by_block()[block]:
        kept = states[piece.parameter].get(name)
        if kept is not None:
            part = kept.detach().reshape(-1)[piece.start : piece.stop]
            flat[piece.offset : piece.offset + piece.count].copy_(part)
    return flat


def _counts(layout: Layout, block: int, states: Sequence[State]) -> Steps:
    """The updates of each piece. SGD does not count: what has momentum has been updated."""
    counts = []
    for piece in layout.pieces_by_block()[block]:
        state = states[piece.parameter]
        begun = any(isinstance(kept, torch.Tensor) for kept in state.values())
        counts.append((piece.offset, piece.offset + piece.count, float(state.get("step", begun))))
    return tuple(counts)
