"""Where the tensors of messages lie in shared memory.

The sender of a direction owns its *arena* and lays the tensors of a message into it one after the other, so
the same kind of message finds its tensors at the same places every time. A tensor that already lies at its
place is not copied: that is how a gradient is written once, and how parameters live where the server writes
them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from operator import is_
from typing import Annotated

import msgspec
import torch

from argosy.protocol.frames import ITEMSIZE, FrameSpec
from argosy.shared_memory.region import Region, offsets_of
from argosy.wire.tensor_bytes import spec_of, torch_dtype

# Beyond what is asked for: room for a model's small buffers, so that they do not need a new arena.
_SLACK = 64 * 1024


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """A frame and where it begins in the sender's arena."""

    frame: FrameSpec
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**48)]


def place(frames: Sequence[FrameSpec]) -> tuple[list[Placed], int]:
    """Where frames go when laid one after the other, and how many bytes that takes."""
    offsets, size = offsets_of([frame.count * ITEMSIZE[frame.dtype] for frame in frames])
    return [Placed(frame, offset) for frame, offset in zip(frames, offsets, strict=True)], size


def tensor_at(region: Region, placed: Placed) -> torch.Tensor:
    """The tensor at a place of the sender's memory; a WireError if it does not lie in there."""
    return region.tensor(placed.offset, torch_dtype(placed.frame.dtype), placed.frame.shape)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """As `copy_`, without what torch does around it: at every step that is much code that has gone cold."""
    if source.is_cpu and source.is_contiguous() and source.nbytes == target.nbytes:
        ctypes.memmove(target.data_ptr(), source.data_ptr(), target.nbytes)
    else:
        target.copy_(source)


class Arena:
    """The sender's side: memory that grows when a message needs more, by replacement."""

    def __init__(self) -> None:
        self._region: Region | None = None
        self._news: int | None = None  # a descriptor that the peer has not been given yet
        self.has_news = False
        self._last: list[torch.Tensor] = []  # what was laid last, where, and what of it had to be copied
        self._places: list[Placed] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def reserve(self, frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
        """Tensors at the places where a message with these frames first would have them."""
        placed, size = place(frames)
        region = self._require(size)
        return [tensor_at(region, each) for each in placed]

    def lay(self, tensors: Sequence[torch.Tensor]) -> list[Placed]:
        """Put tensors in their places; those that are there already are left alone.

        The same ones as the last time, as in training, go where they went.
        """
        if len(self._last) != len(tensors) or not all(map(is_, self._last, tensors)):
            self._plan(tensors)
        for target, tensor in self._copies:
            _copy(target, tensor)
        return self._places

    def _plan(self, tensors: Sequence[torch.Tensor]) -> None:
        placed, size = place([spec_of(tensor) for tensor in tensors])
        region = self._require(size)
        self._copies = [
            (tensor_at(region, each), tensor)
            for tensor, each in zip(tensors, placed, strict=True)
            if tensor.data_ptr() != region.address + each.offset
        ]
        self._last, self._places = list(tensors), placed

    def _require(self, size: int) -> Region:
        if self._region is None or self._region.size < size:
            self.close()
            self._region, self._news = Region.create(size + _SLACK, large_pages=True)
            self.has_news = True
            self._last = []
        return self._region

    def take_news(self) -> int | None:
        """The descriptor of memory that the peer does not know yet; the caller passes it on and closes it."""
        news, self._news, self.has_news = self._news, None, False
        return news

    def close(self) -> None:
        """Close what was never passed on."""
        if (news := self.take_news()) is not None:
            os.close(news)
