"""What a client knows of a value on a task: its number, its shape, its device, and whom it shares memory
with.

A `Handle` that nobody holds any more tells its client, and the task frees the memory with the next message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from argosy.remote.client.cluster_client import Client
    from argosy.remote.client.outbox import Post


class Meta:
    """Shape, strides and dtype. There is one object for each that is in use, so they are compared by
    identity.
    """

    __slots__ = ("bits", "dtype", "nbytes", "shape", "stride")

    def __init__(
        self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, bits: tuple[bool, bool]
    ) -> None:
        self.shape = shape
        self.stride = stride
        self.dtype = dtype
        self.bits = bits  # conjugated, negated: as torch keeps them on a tensor, not done yet
        self.nbytes = math.prod(shape) * dtype.itemsize


_METAS: dict[Any, Meta] = {}


def meta_of(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    bits: tuple[bool, bool] = (False, False),
) -> Meta:
    """The one object for this."""
    key = (shape, stride, dtype, bits)
    found = _METAS.get(key)
    if found is None:
        found = _METAS.setdefault(key, Meta(shape, stride, dtype, bits))
    return found


class Device:
    """A device of a task, as one client sees it."""

    __slots__ = ("client", "kind", "name", "post")

    def __init__(self, client: Client, post: Post, kind: str) -> None:
        self.client = client
        self.post = post
        self.kind = kind  # `cpu:0`
        self.name = f"{post.name}/{kind}"

    def __repr__(self) -> str:
        return self.name


class Memory:
    """What a tensor and its views have in common: how often it has been written to."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version = 0


class Handle:
    """A value on a device."""

    __slots__ = ("copies", "device", "memory", "meta", "number", "offset", "origin")

    def __init__(self, number: int, meta: Meta, device: Device, memory: Memory, offset: int = 0) -> None:
        self.number = number
        self.meta = meta
        self.device = device
        self.memory = memory
        self.offset = offset
        # Copies that other devices were given, good as long as nothing is written here.
        # Of a view of all of another value: that value, the operation, and its further arguments.
        self.origin: tuple[Handle, Any, Sequence[Any], dict[str, Any]] | None = None
        self.copies: dict[Device, tuple[int, Handle]] | None = None

    def __del__(self) -> None:
        self.device.post.dropped.append(self.number)
