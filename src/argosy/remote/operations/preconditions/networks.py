"""Attention, recurrent layers, and the optimizers that update lists of tensors at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from argosy.remote.operations.preconditions.requirements import Checks, require, same_shape
from argosy.torch_private import internal_overlap


# --- attention and recurrent layers -----------------------------------------------------------------------
def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None) -> None:
    require(query.dim() == key.dim() == value.dim() == 4, "four dimensions")
    require(query.shape[:2] == key.shape[:2] == value.shape[:2], "the same batches and heads")
    require(query.shape[3] == key.shape[3] == value.shape[3], "the same width of heads")
    require(key.shape[2] == value.shape[2], "a value for each key")
    require(min(query.numel(), key.numel()) > 0, "tensors that are not empty")
    if attn_mask is not None:
        whole = [*query.shape[:3], key.shape[2]]
        require(attn_mask.dim() in (2, 4), "a mask of two or four dimensions")
        sizes = zip(attn_mask.shape, whole[-attn_mask.dim() :], strict=True)
        require(all(mine in (1, theirs) for mine, theirs in sizes), f"a mask for {whole}")


def _attention_backward(
    grad_out: Tensor, out: Tensor, logsumexp: Tensor, query: Tensor, *others: Any
) -> None:
    """`others`: those that the forward pass was given after the query."""
    _attention(query, *others)
    same_shape(query, out, grad_out)
    require(logsumexp.numel() == query.shape[:3].numel(), "a sum for each query")


def _recurrent(
    input: Tensor, mode: int, hidden_size: int, num_layers: int, has_biases: bool, *tensors: Tensor
) -> None:
    """`tensors`: four weights, and states."""
    weights, states = tensors[:4], tensors[4:]
    gates = {2: 4, 3: 3}.get(mode, 0)  # an LSTM, a GRU
    require(gates > 0 and num_layers > 0 and hidden_size > 0, "a layer of an LSTM or a GRU")
    require(input.dim() == 3 and input.numel() > 0, "an input of three dimensions that is not empty")
    rows = gates * hidden_size
    expected = [[rows, input.shape[2]], [rows, hidden_size], [rows], [rows]]
    for weight, shape in zip(weights, expected[: 4 if has_biases else 2], strict=False):
        require([*weight.shape] == shape, f"a weight of {shape}")
    for state in states:
        require(state.numel() == input.shape[1] * hidden_size, f"a state of {input.shape[1]} x {hidden_size}")
    require(len({each.dtype for each in (input, *tensors)}) == 1, "one dtype")
    require(input.is_floating_point(), "floats")


def _recurrent_backward(
    output: Tensor,
    grad_output: Tensor | None,
    workspace: Tensor,
    batch_first: bool,
    input: Tensor,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    *tensors: Tensor | None,
) -> None:
    given = [each for each in tensors if each is not None]
    _recurrent(input, mode, hidden_size, num_layers, has_biases, *given)
    expected = [*input.shape[:2], hidden_size]
    for each in (output, grad_output):
        require(each is None or [*each.shape] == expected, f"an output of {expected}")
    size = _workspace_size(tuple(input.shape), input.dtype, mode, hidden_size, has_biases, batch_first)
    require(workspace.nbytes == size, f"a workspace of {size} bytes")


@functools.lru_cache(maxsize=1000)
def _workspace_size(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    mode: int,
    hidden_size: int,
    has_biases: bool,
    batch_first: bool,
) -> int:
    """What a forward pass leaves for the backward pass, which only running one tells."""
    rows = {2: 4, 3: 3}[mode] * hidden_size
    sizes = [(rows, shape[2]), (rows, hidden_size), *([(rows,), (rows,)] if has_biases else [(0,), (0,)])]
    weights = [torch.zeros(size, dtype=dtype) for size in sizes]
    states = [torch.zeros(1, shape[1], hidden_size, dtype=dtype) for _ in range(2)]
    flags: tuple[Any, ...] = (False, [], mode, hidden_size, 1, has_biases, False, batch_first, True)
    with torch.enable_grad():  # else it leaves nothing
        made = torch.ops.aten.mkldnn_rnn_layer(torch.zeros(shape, dtype=dtype), *weights, *states, *flags)
    return int(made[3].nbytes)


# --- fused optimizers -------------------------------------------------------------------------------------
def _fused(self: Sequence[Tensor], *lists: Sequence[Tensor]) -> None:
    for each in lists:
        require(len(each) == len(self), f"{len(self)} tensors in each list")
        for mine, theirs in zip(self, each, strict=True):
            same_shape(mine, theirs)
    for each in (self, *lists):
        require(all(_is_dense(tensor) for tensor in each), "tensors without gaps")


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (internal_overlap(tensor) == 0 and _has_no_gaps(tensor))


def _has_no_gaps(tensor: Tensor) -> bool:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return last + 1 == tensor.numel()


def _steps(self: Sequence[Tensor], state_steps: Sequence[Tensor]) -> None:
    require(len(state_steps) == len(self), f"{len(self)} counts of steps")
    require(all(each.numel() == 1 for each in state_steps), "counts of one number")


def _fused_adam(
    amsgrad: bool, state_steps: Sequence[Tensor], max_exp_avg_sqs: Sequence[Tensor], *lists: Sequence[Tensor]
) -> None:
    _fused(*lists, *((max_exp_avg_sqs,) if amsgrad else ()))
    _steps(lists[0], state_steps)


def _fused_sgd(momentum: float, momentum_buffers: Sequence[Tensor], *lists: Sequence[Tensor]) -> None:
    _fused(*lists, *((momentum_buffers,) if momentum or momentum_buffers else ()))


def _fused_adagrad(state_steps: Sequence[Tensor], *lists: Sequence[Tensor]) -> None:
    _fused(*lists)
    _steps(lists[0], state_steps)


_ATTENTION = "query key value attn_mask"
_RECURRENT = "input mode hidden_size num_layers has_biases"
_ADAM = "amsgrad state_steps max_exp_avg_sqs self grads exp_avgs exp_avg_sqs"

CHECKS: Checks = {
    "_scaled_dot_product_flash_attention_for_cpu": (_attention, _ATTENTION),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        _attention_backward,
        f"grad_out out logsumexp {_ATTENTION}",
    ),
    "mkldnn_rnn_layer": (_recurrent, f"{_RECURRENT} weight0 weight1 weight2 weight3 hx_ cx_"),
    "mkldnn_rnn_layer_backward": (
        _recurrent_backward,
        f"output grad_output workspace batch_first {_RECURRENT} weight1 weight2 weight3 weight4 "
        "hx_ cx_tmp hy_ cy_ grad_hy grad_cy",
    ),
    "_fused_adam_": (_fused_adam, _ADAM),
    "_fused_adamw_": (_fused_adam, _ADAM),
    "_fused_sgd_": (_fused_sgd, "momentum momentum_buffer_list self grads"),
    "_fused_adagrad_": (_fused_adagrad, "state_steps self grads state_sums"),
}
