"""Memory that two processes share: sealed memfds, and tensors in them. No sockets.

The sender of a direction owns its *arena* and lays the tensors of a message into it one after the other, so
the same kind of message finds its tensors at the same places every time. A tensor that already lies at its
place is not copied: that is how a gradient is written once, and how parameters live where the server writes
them. Nothing is in the file system, so nothing is left behind however a process ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence
from operator import is_
from typing import Annotated

import msgspec
import torch

from argosy.errors import WireError
from argosy.protocol.frames import ITEMSIZE, FrameSpec
from argosy.wire.large_pages import LARGE, gather_shared, map_at, map_shared, whole_pages
from argosy.wire.tensor_bytes import spec_of, torch_dtype

_ALIGNMENT = 64
# Beyond what is asked for: room for a model's small buffers, so that they do not need a new arena.
_SLACK = 64 * 1024
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """A frame and where it begins in the sender's arena."""

    frame: FrameSpec
    offset: Annotated[int, msgspec.Meta(ge=0, le=2**48)]


class Region:
    """A mapped memfd. The mapping lives as long as a tensor in it does; the descriptor is closed at once."""

    def __init__(self, descriptor: int) -> None:
        self.size = os.fstat(descriptor).st_size
        self._memory, self._begin = map_shared(descriptor, self.size)
        self._tensors: dict[Placed, torch.Tensor] = {}
        self.address = self._bytes(1).data_ptr()

    @classmethod
    def create(cls, size: int, large_pages: bool = False) -> tuple[Region, int]:
        """New memory of at least that size, and a descriptor to pass on and close.

        `large_pages`: all of it will be used, again and again.
        """
        size = whole_pages(size) if large_pages else size
        descriptor = os.memfd_create("argosy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, max(size, mmap.PAGESIZE))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        region = cls(descriptor)
        if large_pages and not region.size % LARGE:
            gather_shared(descriptor, region._memory, region._begin, region.size)
        return region, descriptor

    @classmethod
    def open(cls, descriptor: int) -> Region:
        """A peer's memory. It must be sealed: a peer that shrank it could kill us with a mere look at it."""
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        except OSError:
            seals = 0
        if seals & _SEALS != _SEALS:
            raise WireError("shared memory: expected a sealed memfd, got one that may change its size")
        try:
            return cls(descriptor)
        except (ValueError, OSError, OverflowError) as error:
            raise WireError(f"shared memory: cannot be mapped ({error})") from None

    def make_private(self) -> None:
        """Keep a copy in the place of what others have too: tensors in it no longer change what they see."""
        saved = self.everything().clone()
        map_at(self.address, self.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.everything().copy_(saved)

    def words(self, count: int) -> memoryview:
        """The first `count` numbers of 64 bits, which two processes may read and write without tearing."""
        return memoryview(self._memory)[self._begin : self._begin + 8 * count].cast("q")

    def everything(self) -> torch.Tensor:
        """All of it as bytes."""
        return self._bytes(self.size)

    def _bytes(self, count: int) -> torch.Tensor:
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=count, offset=self._begin)

    def tensor(self, placed: Placed) -> torch.Tensor:
        """The tensor at a place, checked against the size of the memory; the same object every time."""
        known = self._tensors.get(placed)
        if known is not None:
            return known
        frame = placed.frame
        if placed.offset % _ALIGNMENT or placed.offset + frame.nbytes > self.size:
            raise WireError(f"shared memory: {placed} does not lie in {self.size} bytes")
        dtype = torch_dtype(frame.dtype)
        if not frame.count:
            return torch.empty(frame.shape, dtype=dtype)
        offset = self._begin + placed.offset
        flat = torch.frombuffer(self._memory, dtype=dtype, count=frame.count, offset=offset)
        tensor = self._tensors[placed] = flat.view(frame.shape)
        return tensor


def place(frames: Sequence[FrameSpec]) -> tuple[list[Placed], int]:
    """Where frames go when laid one after the other, and how many bytes that takes."""
    offsets, size = offsets_of([frame.count * ITEMSIZE[frame.dtype] for frame in frames])
    return [Placed(frame, offset) for frame, offset in zip(frames, offsets, strict=True)], size


def offsets_of(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where pieces of these sizes begin when laid one after the other, and how many bytes that takes."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


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
        return [region.tensor(each) for each in placed]

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
            (region.tensor(each), tensor)
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
