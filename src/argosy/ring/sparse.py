"""The sum of sparse tensors: every rank gets all indices and values, and adds them up by itself."""

from __future__ import annotations

import torch

from argosy.errors import ConfigError
from argosy.ring.flats import flat_of
from argosy.ring.group import RingGroup
from argosy.ring.reduction import Operation


def all_reduce(group: RingGroup, tensor: torch.Tensor, operation: Operation) -> None:
    """`tensor`, a COO tensor on the CPU, becomes the sum or the mean of all ranks'."""
    if operation not in ("sum", "mean"):
        raise ConfigError("op", "SUM or AVG for sparse tensors", operation)
    # New tensors become part of this one, and must be of its kind.
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        mine = tensor.detach().coalesce()
        what = f"all_reduce({operation}) of sparse {tuple(mine.shape)} x {mine.dtype}"
        indices, values = mine.indices(), mine.values()
        counts = [torch.empty(1, dtype=torch.int64) for _ in range(group.size)]
        group.all_gather(counts, torch.tensor([values.shape[0]]), f"{what}, {mine.sparse_dim()} sparse")
        sizes = [int(count) for count in counts]
        everywhere = _gather(group, indices.t(), sizes)
        given = _gather(group, values, sizes)
        total = torch.sparse_coo_tensor(everywhere.t(), given, mine.shape, check_invariants=False).coalesce()
        tensor.copy_(total / group.size if operation == "mean" else total)


def _gather(group: RingGroup, rows: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """All ranks' rows, one after the other; they travel with as many as the longest has."""
    longest = max(sizes)
    padded = rows.new_zeros((longest, *rows.shape[1:]))
    padded[: len(rows)] = rows
    taken = [torch.empty_like(padded) for _ in sizes]
    group.all_gather([flat_of(each) for each in taken], flat_of(padded))
    return torch.cat([each[:size] for each, size in zip(taken, sizes, strict=True)])
