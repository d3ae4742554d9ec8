"""Losses, distances, linear algebra and transforms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from argosy.remote.operations.preconditions.requirements import Checks, require, same_shape, within


def _nll_loss2d_backward(self: Tensor, target: Tensor, ignore_index: int) -> None:
    require(self.dim() == 4, "four dimensions")
    require([*target.shape] == [self.shape[0], *self.shape[2:]], "a target for each place")
    within(target[target != ignore_index], 0, self.shape[1], "target")


def _multi_margin_backward(grad_output: Tensor, self: Tensor) -> None:
    require(0 < self.dim() <= 2, "one or two dimensions")
    rows = self.shape[0] if self.dim() == 2 else 1
    require(grad_output.numel() in (1, rows) and grad_output.dim() <= 1, "a gradient of the loss")


def _multilabel_margin_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> None:
    same_shape(self, target, is_target)
    require(self.dim() <= 2, "at most two dimensions")
    within(target, -1, self.shape[-1] if self.dim() else 1, "target")
    rows = self.shape[0] if self.dim() == 2 else 1
    require(grad_output.numel() == (rows if reduction == 0 else 1), "a gradient of the loss")


def _cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, cdist: Tensor) -> None:
    require(min(x1.dim(), x2.dim()) >= 2 and x1.shape[-1] == x2.shape[-1], "vectors of one length")
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    expected = [*batch, x1.shape[-2], x2.shape[-2]]
    require([*grad.shape] == [*cdist.shape] == expected, f"distances of {expected}")


def _pdist(self: Tensor) -> None:
    require(self.dim() == 2, "two dimensions")


def _pdist_backward(grad: Tensor, self: Tensor, pdist: Tensor) -> None:
    _pdist(self)
    require(self.shape[0] > 0, "rows")
    pairs = self.shape[0] * (self.shape[0] - 1) // 2
    require([*grad.shape] == [*pdist.shape] == [pairs], f"{pairs} distances")


# --- linear algebra, transforms ----------------------------------------------------------------------------
def _pivots(least: int, matrix: Tensor, pivots: Tensor) -> None:
    require(matrix.dim() >= 2, "a matrix")
    rows = matrix.shape[-2]
    expected = [*matrix.shape[:-2], min(matrix.shape[-2:])]
    require([*pivots.shape] == expected, f"pivots of {expected}")
    within(pivots, least, rows + 1, "pivots")


def _ldl_solve(LD: Tensor, pivots: Tensor) -> None:  # noqa: N803
    _pivots(-LD.shape[-1], LD, pivots)
    for row in pivots.reshape(-1, pivots.shape[-1]).tolist():
        require(_are_blocks(row), "pivots of blocks of one and two rows")


def _are_blocks(pivots: list[int]) -> bool:
    """Two rows that were exchanged together have the same negative number, side by side."""
    position = 0
    while position < len(pivots):
        if pivots[position] > 0:
            position += 1
        elif pivots[position] < 0 and pivots[position : position + 1] == pivots[position + 1 : position + 2]:
            position += 2
        else:
            return False
    return True


def _eigenvalues(self: Tensor) -> None:
    require(bool(self.isfinite().all()), "finite numbers")


def _random(first: int | None, to: int | None) -> None:
    """From a number on, without an end: beyond what a dtype can count, PyTorch looks for it for ever."""
    require(to is not None or abs(first or 0) < 2**31, "less to begin with, or an end")


def _fft(self: Tensor, dim: Sequence[int]) -> None:
    require(all(0 <= each < self.dim() for each in dim), f"dimensions of 0 to {self.dim() - 1}")
    require(len({*dim}) == len(dim) > 0, "each dimension once")
    require(self.numel() > 0, "an input that is not empty")


def _fft_to_real(self: Tensor, dim: Sequence[int], last_dim_size: int) -> None:
    _fft(self, dim)
    require(self.shape[dim[-1]] == last_dim_size // 2 + 1, "half of the numbers and one")


CHECKS: Checks = {
    "nll_loss2d_backward": (_nll_loss2d_backward, "self target ignore_index"),
    "multi_margin_loss_backward": (_multi_margin_backward, "grad_output self"),
    "multilabel_margin_loss_backward": (
        _multilabel_margin_backward,
        "grad_output self target reduction is_target",
    ),
    "_cdist_backward": (_cdist_backward, "grad x1 x2 cdist"),
    "_pdist_forward": (_pdist, "self"),
    "_pdist_backward": (_pdist_backward, "grad self pdist"),
    "linalg_eig": (_eigenvalues, "self"),
    "linalg_eigvals": (_eigenvalues, "self"),
    "random": (_random, "from to"),
    "random_": (_random, "from to"),
    "linalg_lu_solve": (partial(_pivots, 1), "LU pivots"),
    "lu_unpack": (partial(_pivots, 1), "LU_data LU_pivots"),
    "linalg_ldl_solve": (_ldl_solve, "LD pivots"),
    "_fft_c2c": (_fft, "self dim"),
    "_fft_c2r": (_fft_to_real, "self dim last_dim_size"),
    "_fft_r2c": (_fft, "self dim"),
}
