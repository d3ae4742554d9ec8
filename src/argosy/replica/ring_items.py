"""A model's tensors as the ring sees them."""

from __future__ import annotations

import torch
from torch import nn

from argosy.ring.buckets import Item


def buffer_places(model: nn.Module | None) -> list[tuple[nn.Module, str]]:
    """Where the buffers are that belong to a model's state."""
    if model is None:
        return []
    saved = model.state_dict().keys()
    return [
        (module, name)
        for prefix, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and (f"{prefix}.{name}" if prefix else name) in saved
    ]


def item_of(tensor: torch.Tensor) -> Item[torch.dtype]:
    """A tensor as a bucket sees it."""
    return Item(tensor.numel(), tensor.dtype, tensor.element_size())


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    """Where the mean goes: the gradient that is there, or a new one."""
    if parameter.grad is None or parameter.grad.layout != torch.strided:
        parameter.grad = torch.empty_like(parameter)
    return parameter.grad
