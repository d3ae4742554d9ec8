"""Pooling, padding, sampling and normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from argosy.remote.operations.preconditions.requirements import Checks, require, same_shape, within


def _pooled(spatial: int, grad_output: Tensor, self: Tensor) -> None:
    require(grad_output.dim() == self.dim() > spatial, "as many dimensions in both")
    require(grad_output.shape[:-spatial] == self.shape[:-spatial], "the same batches and channels")
    require(grad_output.dtype == self.dtype, "the same dtype")
    require(math.prod(self.shape[-spatial:]) > 0, "an input that is not empty")


def _max_pooled(spatial: int, grad_output: Tensor, self: Tensor, indices: Tensor) -> None:
    _pooled(spatial, grad_output, self)
    same_shape(grad_output, indices)
    within(indices, 0, math.prod(self.shape[-spatial:]), "indices")


def _fractional_pooled(
    spatial: int, grad_output: Tensor, self: Tensor, output_size: Sequence[int], indices: Tensor
) -> None:
    require(len(output_size) == spatial, f"{spatial} sizes")
    _max_pooled(spatial, grad_output, self, indices)
    require([*grad_output.shape[-spatial:]] == [*output_size], f"an output of {output_size}")


def _replicated(spatial: int, grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> None:
    require(len(padding) == 2 * spatial, f"{2 * spatial} sizes of padding")
    _pooled(spatial, grad_output, self)
    for place in range(spatial):
        size = self.shape[-1 - place] + padding[2 * place] + padding[2 * place + 1]
        require(grad_output.shape[-1 - place] == size > 0, "the padded size")


def _reflected(spatial: int, grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> None:
    _replicated(spatial, grad_output, self, padding)
    for place in range(spatial):
        most = max(padding[2 * place : 2 * place + 2])
        require(most < self.shape[-1 - place], "less padding than there is to reflect")


def _grid_sampled(spatial: int, grad_output: Tensor, input: Tensor, grid: Tensor) -> None:
    require(input.dim() == grid.dim() == spatial + 2, f"{spatial + 2} dimensions")
    require(grid.shape[0] == input.shape[0] and grid.shape[-1] == spatial, "a grid for this input")
    require(math.prod(input.shape[2:]) > 0, "an input that is not empty")
    expected = [*input.shape[:2], *grid.shape[1:-1]]
    require([*grad_output.shape] == expected, f"a gradient of {expected}")
    require(bool(grid.isfinite().all()), "a grid of finite numbers")


def _chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int) -> None:
    require(num_chunks > 0, "chunks")
    require(all(-each.dim() <= dim < each.dim() for each in tensors), "tensors with that dimension")


# --- normalization -----------------------------------------------------------------------------------------
def _channels(input: Tensor, *each: Tensor | None) -> None:
    """Whether there is a number for each channel, or none at all."""
    require(input.dim() >= 2, "an input with channels")
    for one in each:
        require(one is None or [*one.shape] == [input.shape[1]], "one number a channel")


def _batch_norm(training: bool, input: Tensor, *each: Tensor | None) -> None:
    """`each`: weight, bias, and last the running mean and variance."""
    _channels(input, *each)
    require(training or None not in each[-2:], "running statistics, or to be training")


def _batch_norm_backward(
    train: bool, grad_out: Tensor, input: Tensor, weight: Tensor | None, *statistics: Tensor | None
) -> None:
    """`statistics`: the running mean and variance, and those that were saved."""
    same_shape(input, grad_out)
    used = statistics[2:] if train else statistics[:2]
    _channels(input, weight, *used)
    require(None not in used, "the statistics that were used")


def _layer_norm_backward(
    grad_out: Tensor, input: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor, *each: Tensor | None
) -> None:
    """`each`: weight and bias."""
    same_shape(input, grad_out)
    inner = len(shape)
    require(0 < inner <= input.dim(), "a shape that is part of the input's")
    require([*input.shape[-inner:]] == [*shape], f"an input that ends with {shape}")
    rows = math.prod(input.shape[: input.dim() - inner])
    require(mean.numel() == rstd.numel() == rows, f"statistics of {rows} rows")
    for one in each:
        require(one is None or [*one.shape] == [*shape], f"a weight of {shape}")


def _weight_norm(v: Tensor, g: Tensor, dim: int) -> None:
    require(v.numel() > 0 and dim in (0, v.dim() - 1), "weights with a first or last dimension")
    require(g.numel() == v.shape[dim], f"{v.shape[dim]} norms")


def _weight_norm_backward(grad_w: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> None:
    same_shape(v, grad_w)
    _weight_norm(v, g, dim)
    _weight_norm(v, norms, dim)


_NORMALIZED = "input weight bias running_mean running_var"
_NORMALIZED_BACKWARD = "grad_out input weight running_mean running_var save_mean"

CHECKS: Checks = {
    "_adaptive_avg_pool2d_backward": (partial(_pooled, 2), "grad_output self"),
    "_adaptive_avg_pool3d_backward": (partial(_pooled, 3), "grad_output self"),
    "avg_pool2d_backward": (partial(_pooled, 2), "grad_output self"),
    "avg_pool3d_backward": (partial(_pooled, 3), "grad_output self"),
    "adaptive_max_pool2d_backward": (partial(_max_pooled, 2), "grad_output self indices"),
    "adaptive_max_pool3d_backward": (partial(_max_pooled, 3), "grad_output self indices"),
    "max_pool2d_with_indices_backward": (partial(_max_pooled, 2), "grad_output self indices"),
    "max_pool3d_with_indices_backward": (partial(_max_pooled, 3), "grad_output self indices"),
    "fractional_max_pool2d_backward": (
        partial(_fractional_pooled, 2),
        "grad_output self output_size indices",
    ),
    "fractional_max_pool3d_backward": (
        partial(_fractional_pooled, 3),
        "grad_output self output_size indices",
    ),
    "reflection_pad1d_backward": (partial(_reflected, 1), "grad_output self padding"),
    "reflection_pad2d_backward": (partial(_reflected, 2), "grad_output self padding"),
    "reflection_pad3d_backward": (partial(_reflected, 3), "grad_output self padding"),
    "replication_pad1d_backward": (partial(_replicated, 1), "grad_output self padding"),
    "replication_pad2d_backward": (partial(_replicated, 2), "grad_output self padding"),
    "replication_pad3d_backward": (partial(_replicated, 3), "grad_output self padding"),
    "grid_sampler_2d_backward": (partial(_grid_sampled, 2), "grad_output input grid"),
    "grid_sampler_3d_backward": (partial(_grid_sampled, 3), "grad_output input grid"),
    "_chunk_cat": (_chunk_cat, "tensors dim num_chunks"),
    "native_batch_norm": (_batch_norm, f"training {_NORMALIZED}"),
    "_native_batch_norm_legit": (_batch_norm, f"training {_NORMALIZED}"),
    "_batch_norm_with_update": (_channels, _NORMALIZED),
    "native_batch_norm_backward": (_batch_norm_backward, f"train {_NORMALIZED_BACKWARD} save_invstd"),
    "batch_norm_backward": (_batch_norm_backward, f"update {_NORMALIZED_BACKWARD} save_var"),
    "native_layer_norm_backward": (
        _layer_norm_backward,
        "grad_out input normalized_shape mean rstd weight bias",
    ),
    "_weight_norm_interface": (_weight_norm, "v g dim"),
    "_weight_norm_interface_backward": (_weight_norm_backward, "grad_w saved_v saved_g saved_norms dim"),
    "_softmax_backward_data": (same_shape, "output grad_output"),
    "_log_softmax_backward_data": (same_shape, "output grad_output"),
}
