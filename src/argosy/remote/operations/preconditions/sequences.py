"""Embeddings, segments, and sequences with lengths."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from argosy.remote.operations.preconditions.requirements import Checks, require, same_shape, within


# --- embeddings -------------------------------------------------------------------------------------------
def _embedding_backward(grad_output: Tensor, indices: Tensor, num_weights: int) -> None:
    require(grad_output.shape[:-1] == indices.shape and grad_output.dim() > 0, "a gradient for each index")
    within(indices, 0, num_weights, "indices")


def _bags(indices: Tensor, offsets: Tensor) -> None:
    require(indices.dim() == offsets.dim() == 1, "indices and offsets of one dimension")
    require(offsets.numel() == 0 or int(offsets[0]) == 0, "offsets that begin with 0")
    require(bool((offsets.diff() >= 0).all()), "offsets that do not decrease")
    within(offsets, 0, indices.numel() + 1, "offsets")


def _embedding_bag(
    mode: int, last: bool, weight: Tensor, indices: Tensor, offsets: Tensor, sample_weights: Tensor | None
) -> None:
    require(weight.dim() == 2, "weights of two dimensions")
    require(0 <= mode <= 2, "a mode of 0, 1 or 2")
    require(not last or offsets.numel() > 0, "a last offset")
    _bags(indices, offsets)
    within(indices, 0, weight.shape[0], "indices")
    if sample_weights is not None:
        same_shape(indices, sample_weights)


def _bags_backward(grad: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor) -> None:
    require(grad.dim() == 2, "a gradient of two dimensions")
    _bags(indices, offsets)
    if offset2bag.numel():
        same_shape(indices, offset2bag)
        within(offset2bag, 0, grad.shape[0], "offset2bag")
    else:
        require(offsets.numel() <= grad.shape[0], "a gradient for each bag")
        require(offsets.numel() > 0 or not indices.numel(), "a bag for each index")


def _embedding_bag_backward(
    mode: int,
    sparse: bool,
    num_weights: int,
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    sample_weights: Tensor | None,
) -> None:
    require(not sparse, "a dense gradient")
    require(0 <= mode <= 2, "a mode of 0, 1 or 2")
    _bags_backward(grad, indices, offsets, offset2bag)
    within(indices, 0, num_weights, "indices")
    require(bag_size.numel() >= grad.shape[0], "the size of each bag")
    if mode == 2:
        same_shape(grad, maximum_indices)
        within(maximum_indices, -1, num_weights, "maximum_indices")
    if sample_weights is not None:
        same_shape(indices, sample_weights)


def _bag_weights_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor
) -> None:
    _bags_backward(grad, indices, offsets, offset2bag)
    require(weight.dim() == 2 and weight.shape[1] == grad.shape[1], "weights as wide as the gradient")
    within(indices, 0, weight.shape[0], "indices")


# --- segments and lengths ---------------------------------------------------------------------------------
def _segments(data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int) -> Tensor:
    """The lengths or the offsets, whichever are given."""
    require((lengths is None) != (offsets is None), "lengths or offsets, and not both")
    require(0 <= axis < data.dim(), f"an axis of 0 to {data.dim() - 1}")
    given = lengths if lengths is not None else offsets
    require(given is not None and given.dim() == axis + 1, "lengths or offsets along the axis")
    assert given is not None
    require(given.shape[:axis] == data.shape[:axis], "lengths or offsets for each row")
    if lengths is not None:
        within(lengths, 0, data.shape[axis] + 1, "lengths")
        require(bool((lengths.sum(-1) == data.shape[axis]).all()), "lengths that add up to the axis")
    else:
        within(given, 0, data.shape[axis] + 1, "offsets")
        rises = given.shape[axis] > 0 and bool((given.diff(dim=-1) >= 0).all())
        require(rises, "offsets that do not decrease")
    return given


def _segment_reduce(
    unsafe: bool, data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int
) -> None:
    require(not unsafe, "unsafe=False")
    _segments(data, lengths, offsets, axis)


def _segment_reduce_backward(
    grad: Tensor, output: Tensor, data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int
) -> None:
    same_shape(output, grad)
    given = _segments(data, lengths, offsets, axis)
    rows = given.shape[axis] - (lengths is None)
    expected = [*data.shape[:axis], rows, *data.shape[axis + 1 :]]
    require([*output.shape] == expected, f"an output of {expected}")


def _ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int
) -> None:
    require(log_probs.dim() == 3, "log_probs of three dimensions")
    steps, batch, labels = log_probs.shape
    given = [[int(n) for n in each] for each in (input_lengths, target_lengths)]
    require(all(len(each) == batch for each in given), f"{batch} lengths")
    require(all(0 <= each <= steps for each in given[0]), f"input lengths of at most {steps}")
    require(min(given[1], default=0) >= 0, "target lengths of 0 or more")
    if targets.dim() == 2:
        require(targets.shape[0] == batch, f"targets of {batch} rows")
        require(max(given[1], default=0) <= targets.shape[1], "targets as long as they are said to be")
    else:
        is_long = targets.dim() == 1 and sum(given[1]) <= targets.numel()
        require(is_long, "targets as long as they are said to be")
    require(0 <= blank < labels, "a blank that is a label")
    within(targets, 0, labels, "targets")


def _ctc_loss_backward(
    grad: Tensor,
    losses: Tensor,
    log_alpha: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int,
) -> None:
    _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank)
    steps, batch, _labels = log_probs.shape
    require(grad.numel() == losses.numel() == batch, f"a loss for each of {batch}")
    longest = max((int(each) for each in target_lengths), default=0)
    expected = [batch, steps, 2 * longest + 1]
    require([*log_alpha.shape] == expected, f"log_alpha of {expected}")


_BAGS = "indices offsets offset2bag"
_SEGMENTS = "lengths offsets axis"
_CTC = "log_probs targets input_lengths target_lengths blank"

CHECKS: Checks = {
    "embedding_dense_backward": (_embedding_backward, "grad_output indices num_weights"),
    "_embedding_bag": (
        _embedding_bag,
        "mode include_last_offset weight indices offsets per_sample_weights",
    ),
    "_embedding_bag_backward": (
        _embedding_bag_backward,
        f"mode sparse num_weights grad {_BAGS} bag_size maximum_indices per_sample_weights",
    ),
    "_embedding_bag_per_sample_weights_backward": (_bag_weights_backward, f"grad weight {_BAGS}"),
    "segment_reduce": (_segment_reduce, f"unsafe data {_SEGMENTS}"),
    "_segment_reduce_backward": (_segment_reduce_backward, f"grad output data {_SEGMENTS}"),
    "_ctc_loss": (_ctc_loss, _CTC),
    "_ctc_loss_backward": (_ctc_loss_backward, f"grad neg_log_likelihood log_alpha {_CTC}"),
}
