"""From the servers' slots, which are flat, to the state of each parameter as torch has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from argosy.store.layout import Layout


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
        count = next((c for start, stop, c in steps if start <= piece.offset < stop), 0.0)
        if not count:  # no update so far: torch has no state, either
            continue
        state = found.setdefault(piece.parameter, {"step": torch.tensor(count)})
        for name, slot in slots.items():
            whole = state.setdefault(name, torch.zeros(parameter.shape, dtype=slot.dtype))
            part = slot[piece.offset : piece.offset + piece.count]
            whole.view(-1)[piece.start : piece.stop].copy_(part)
