"""What a client knows of a value on a task: its number, shape, device, and the storage that it shares.

When a `Handle` is freed, its number goes to the outbox, and the task frees the memory with the next message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from argosy.remote.client.cluster_client import Client
    from argosy.remote.client.outbox import Outbox


@dataclass(slots=True, eq=False)
class TensorMeta:
    """Shape, strides and dtype. Equal ones are the same object, so they are compared by identity."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    bits: tuple[bool, bool]  # conjugated, negated: torch's lazy flags
    nbytes: int


_METAS: dict[Any, TensorMeta] = {}


def meta_of(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    bits: tuple[bool, bool] = (False, False),
) -> TensorMeta:
    """The object for this shape, strides and dtype."""
    key = (shape, stride, dtype, bits)
    found = _METAS.get(key)
    if found is None:
        found = _METAS.setdefault(key, TensorMeta(*key, math.prod(shape) * dtype.itemsize))
    return found


class RemoteDevice:
    """A device of a task, as one client sees it."""

    __slots__ = ("client", "kind", "name", "outbox")

    def __init__(self, client: Client, outbox: Outbox, kind: str) -> None:
        self.client = client
        self.outbox = outbox
        self.kind = kind  # `cpu:0`
        self.name = f"{outbox.name}/{kind}"

    def __repr__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)
class RemoteStorage:
    """Memory that a tensor shares with its views; `version` counts the writes."""

    version: int = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Handle:
    """A value on a device."""

    number: int
    meta: TensorMeta
    device: RemoteDevice
    storage: RemoteStorage
    offset: int = 0
    # Of a view of all of another value: that value, the operation, and its other arguments.
    origin: tuple[Handle, Any, Sequence[Any], dict[str, Any]] | None = None
    # Copies on other devices, each with the version of the storage that it was made from.
    copies: dict[RemoteDevice, tuple[int, Handle]] | None = None

    def __del__(self) -> None:
        self.device.outbox.dropped.append(self.number)


def device_with_most_bytes(tensors: Sequence[Any]) -> RemoteDevice:
    """The device that holds most bytes of these tensors; the first of equals."""
    sizes: dict[RemoteDevice, int] = {}
    for each in tensors:
        sizes[each.handle.device] = sizes.get(each.handle.device, 0) + each.handle.meta.nbytes
    return max(sizes, key=lambda device: sizes[device])
