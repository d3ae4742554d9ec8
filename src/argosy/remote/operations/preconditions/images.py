"""Pooling, padding, sampling and normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from argosy.remote.operations.preconditions.requirements import Check, require, same_shape, within


def _pooled(spatial: int, grad_output: Tensor, self: Tensor) -> None:
    require(grad_output.dim() == self.dim() > spatial, "as many dimensions in both")
    require(grad_output.shape[:-spatial] == self.shape[:-spatial], "the same batches and channels")
    require(grad_output.dtype == self.dtype, "the same dtype")
    require(math.prod(self.shape[-spatial:]) > 0, "an input that is not empty")


def _pool(spatial: int) -> Check:
    def check(grad_output: Tensor, self: Tensor, *_: Any, **__: Any) -> None:
        _pooled(spatial, grad_output, self)

    return check


def _max_pool(spatial: int, position: int) -> Check:
    """`position`: of the indices."""

    def check(*args: Any, **kwargs: Any) -> None:
        grad_output, self = args[:2]
        indices = kwargs["indices"] if "indices" in kwargs else args[position]
        _pooled(spatial, grad_output, self)
        same_shape(grad_output, indices)
        within(indices, 0, math.prod(self.shape[-spatial:]), "indices")

    return check


def _fractional_pool(spatial: int) -> Check:
    def check(
        grad_output: Tensor, self: Tensor, kernel_size: Any, output_size: Any, indices: Tensor, **_: Any
    ) -> None:
        require(len(output_size) == spatial, f"{spatial} sizes")
        _pooled(spatial, grad_output, self)
        require([*grad_output.shape[-spatial:]] == [*output_size], f"an output of {output_size}")
        same_shape(grad_output, indices)
        within(indices, 0, math.prod(self.shape[-spatial:]), "indices")

    return check


def _reflection_pad(spatial: int) -> Check:
    def check(grad_output: Tensor, self: Tensor, padding: Sequence[int], **_: Any) -> None:
        require(len(padding) == 2 * spatial, f"{2 * spatial} sizes of padding")
        _pooled(spatial, grad_output, self)
        for place in range(spatial):
            before, after = padding[2 * place], padding[2 * place + 1]
            size = self.shape[-1 - place]
            require(max(before, after) < size, "less padding than there is to reflect")
            require(grad_output.shape[-1 - place] == size + before + after, "the padded size")

    return check


def _replication_pad(spatial: int) -> Check:
    def check(grad_output: Tensor, self: Tensor, padding: Sequence[int], **_: Any) -> None:
        require(len(padding) == 2 * spatial, f"{2 * spatial} sizes of padding")
        _pooled(spatial, grad_output, self)
        for place in range(spatial):
            size = self.shape[-1 - place] + padding[2 * place] + padding[2 * place + 1]
            require(grad_output.shape[-1 - place] == size > 0, "the padded size")

    return check


def _grid_sampler(spatial: int) -> Check:
    def check(grad_output: Tensor, input: Tensor, grid: Tensor, *_: Any, **__: Any) -> None:
        require(input.dim() == grid.dim() == spatial + 2, f"{spatial + 2} dimensions")
        require(grid.shape[0] == input.shape[0] and grid.shape[-1] == spatial, "a grid for this input")
        require(math.prod(input.shape[2:]) > 0, "an input that is not empty")
        expected = [*input.shape[:2], *grid.shape[1:-1]]
        require([*grad_output.shape] == expected, f"a gradient of {expected}")
        require(bool(grid.isfinite().all()), "a grid of finite numbers")

    return check


def _chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int, **_: Any) -> None:
    require(num_chunks > 0, "chunks")
    require(all(-each.dim() <= dim < each.dim() for each in tensors), "tensors with that dimension")


# --- normalization -----------------------------------------------------------------------------------------
def _channels(input: Tensor, *each: Tensor | None) -> None:
    """Whether there is a number for each channel, or none at all."""
    require(input.dim() >= 2, "an input with channels")
    for one in each:
        require(one is None or [*one.shape] == [input.shape[1]], "one number a channel")


def _batch_norm(
    input: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    training: bool = True,
    *_: Any,
    **__: Any,
) -> None:
    _channels(input, weight, bias, running_mean, running_var)
    require(training or None not in (running_mean, running_var), "running statistics, or to be training")


def _batch_norm_legit(input: Tensor, weight: Any, bias: Any, *rest: Any, **kwargs: Any) -> None:
    if (rest and isinstance(rest[0], Tensor)) or "running_mean" in kwargs:
        _batch_norm(input, weight, bias, *rest, **kwargs)
        return
    _channels(input, weight, bias)
    require(kwargs.get("training", rest[0] if rest else False) is True, "to be training without statistics")


def _batch_norm_update(
    input: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, *_: Any, **__: Any
) -> None:
    _channels(input, weight, bias, running_mean, running_var)


def _batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    train: bool,
    *_: Any,
    **__: Any,
) -> None:
    same_shape(input, grad_out)
    used = (save_mean, save_var) if train else (running_mean, running_var)
    _channels(input, weight, *used)
    require(None not in used, "the statistics that were used")


def _layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *_: Any,
    **__: Any,
) -> None:
    same_shape(input, grad_out)
    inner = len(normalized_shape)
    require(0 < inner <= input.dim(), "a shape that is part of the input's")
    require([*input.shape[-inner:]] == [*normalized_shape], f"an input that ends with {normalized_shape}")
    rows = math.prod(input.shape[: input.dim() - inner])
    require(mean.numel() == rstd.numel() == rows, f"statistics of {rows} rows")
    for each in (weight, bias):
        require(each is None or [*each.shape] == [*normalized_shape], f"a weight of {normalized_shape}")


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0, *_: Any, **__: Any) -> None:
    require(v.numel() > 0 and dim in (0, v.dim() - 1), "weights with a first or last dimension")
    require(g.numel() == v.shape[dim], f"{v.shape[dim]} norms")


def _weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int, **_: Any
) -> None:
    same_shape(saved_v, grad_w)
    _weight_norm(saved_v, saved_g, dim)
    _weight_norm(saved_v, saved_norms, dim)


def _softmax_backward(grad_output: Tensor, output: Tensor, *_: Any, **__: Any) -> None:
    same_shape(output, grad_output)


CHECKS: dict[str, Check] = {
    "_adaptive_avg_pool2d_backward": _pool(2),
    "_adaptive_avg_pool3d_backward": _pool(3),
    "avg_pool2d_backward": _pool(2),
    "avg_pool3d_backward": _pool(3),
    "adaptive_max_pool2d_backward": _max_pool(2, 2),
    "adaptive_max_pool3d_backward": _max_pool(3, 2),
    "max_pool2d_with_indices_backward": _max_pool(2, 7),
    "max_pool3d_with_indices_backward": _max_pool(3, 7),
    "fractional_max_pool2d_backward": _fractional_pool(2),
    "fractional_max_pool3d_backward": _fractional_pool(3),
    "reflection_pad1d_backward": _reflection_pad(1),
    "reflection_pad2d_backward": _reflection_pad(2),
    "reflection_pad3d_backward": _reflection_pad(3),
    "replication_pad1d_backward": _replication_pad(1),
    "replication_pad2d_backward": _replication_pad(2),
    "replication_pad3d_backward": _replication_pad(3),
    "grid_sampler_2d_backward": _grid_sampler(2),
    "grid_sampler_3d_backward": _grid_sampler(3),
    "_chunk_cat": _chunk_cat,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm_legit,
    "_batch_norm_with_update": _batch_norm_update,
    "native_batch_norm_backward": _batch_norm_backward,
    "batch_norm_backward": _batch_norm_backward,
    "native_layer_norm_backward": _layer_norm_backward,
    "_weight_norm_interface": _weight_norm,
    "_weight_norm_interface_backward": _weight_norm_backward,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
}
