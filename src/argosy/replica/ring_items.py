"""A model's tensors as the ring sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from argosy.modes import BufferRule
from argosy.ring.buckets import BUCKET_BYTES, Bucket, BucketItem, BucketPiece, fill
from argosy.torch_private import buffers_of

_ANY = torch.preserve_format
Places = Sequence[tuple[nn.Module, str]]


def buffers_at(places: Places) -> list[torch.Tensor]:
    """The buffers that are there now: a module may have put others in their place."""
    return [buffer for module, name in places if (buffer := buffers_of(module)[name]) is not None]


def item_of(tensor: torch.Tensor) -> BucketItem[torch.dtype]:
    """A tensor as a bucket sees it."""
    return BucketItem(tensor.numel(), tensor.dtype, tensor.element_size())


def buffer_buckets(
    buffers: Sequence[torch.Tensor], first: int, rule: BufferRule
) -> list[Bucket[torch.dtype]]:
    """Buckets of a model's buffers, none of which is cut; `first` is the number of the first.

    Whole numbers, such as counters, have no mean that is one: the largest is taken.
    """
    items = [item_of(buffer) for buffer in buffers]
    most = max([BUCKET_BYTES, *(item.count * item.itemsize for item in items)])
    if rule == "chief":
        return fill(items, most, "first", first)
    buckets = fill(items, most, "latest", first)
    broken = [bucket.dtype.is_floating_point or bucket.dtype.is_complex for bucket in buckets]
    return [b if kept else replace(b, rule="max") for b, kept in zip(buckets, broken, strict=True)]


def device_of(parameters: Sequence[torch.Tensor]) -> torch.device:
    """Where all gradients are; the CPU, if they are not all in one place."""
    devices = {parameter.device for parameter in parameters}
    return devices.pop() if len(devices) == 1 else torch.device("cpu")


def gradient_of(parameter: nn.Parameter, whole: bool = True) -> torch.Tensor:
    """Where the mean goes: the gradient that is there, or a new one; if not `whole`, one that can be cut."""
    found = parameter.grad
    if found is None or found.layout != torch.strided or not (whole or found.is_contiguous()):
        fresh = torch.empty_like(parameter, memory_format=_ANY if whole else torch.contiguous_format)
        if found is not None and not whole:
            fresh.copy_(found)  # some of it may have been replaced already
        found = parameter.grad = fresh
    return found


def cut(tensor: torch.Tensor, piece: BucketPiece) -> torch.Tensor:
    """A piece of a tensor, of which only a contiguous one is not copied."""
    return tensor if piece.whole else tensor.reshape(-1)[piece.begin : piece.end]


def views(
    bucket: Bucket[torch.dtype], flat: torch.Tensor, tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The pieces of a bucket that lies in `flat`; whole ones in their tensor's shape."""
    found = []
    for piece in bucket.pieces:
        view = flat[piece.offset : piece.offset + piece.end - piece.begin]
        found.append(view.view(tensors[piece.item].shape) if piece.whole else view)
    return found
