"""Sparse gradients among dense ones: a place that nobody touched holds -0.0, one that was touched never does.

Sums keep the difference, since -0.0 + -0.0 is -0.0 and -0.0 with anything else is that other thing. So sparse
gradients travel as dense ones do, and what comes of them is sparse again, with exactly the union of all
indices: a row that was touched with a gradient of zero is not one that nobody touched.
"""

from __future__ import annotations

import torch

from argosy.ring.notes import ABSENT, DENSE, MOST_SPARSE


def kind_of(gradient: torch.Tensor | None) -> int:
    """The kind of a piece, see `argosy.ring.notes`."""
    if gradient is None:
        return ABSENT
    if gradient.layout == torch.sparse_coo and gradient.sparse_dim() <= MOST_SPARSE:
        return DENSE + gradient.sparse_dim()
    return DENSE


def to_marked(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient as a dense tensor, of a sparse one with -0.0 wherever it has nothing."""
    if kind_of(gradient) == DENSE:
        return gradient if gradient.layout == torch.strided else gradient.to_dense()
    whole = gradient.coalesce()
    dense = torch.full(gradient.shape, -0.0, dtype=gradient.dtype, device=gradient.device)
    dense[tuple(whole.indices())] = whole.values() + 0.0  # of -0.0 that makes 0.0
    return dense


def from_marked(dense: torch.Tensor, kind: int) -> torch.Tensor:
    """The sparse gradient of that kind, in memory of its own."""
    real = dense.real if dense.is_complex() else dense
    untouched = (real == 0) & torch.signbit(real)
    dimensions = kind - DENSE
    if dense.dim() > dimensions:
        untouched = untouched.flatten(dimensions).all(dimensions)
    indices = untouched.logical_not().nonzero().t()
    values = dense[tuple(indices)]
    return torch.sparse_coo_tensor(indices, values, dense.shape, is_coalesced=True, check_invariants=False)
