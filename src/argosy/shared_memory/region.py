"""Memory that processes share: sealed memfds, mapped, and tensors in them. No sockets.

Nothing is in the file system, so nothing is left behind however a process ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
from collections.abc import Sequence
from typing import Any

import torch

from argosy.errors import WireError
from argosy.shared_memory.large_pages import LARGE, gather_shared, map_at, map_shared, whole_pages

_ALIGNMENT = 64
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Region:
    """A mapped memfd. The mapping lives as long as a tensor in it does; the descriptor is closed at once."""

    def __init__(self, descriptor: int) -> None:
        self.size = os.fstat(descriptor).st_size
        self._memory, self._begin = map_shared(descriptor, self.size)
        self._tensors: dict[tuple[int, torch.dtype, tuple[int, ...]], torch.Tensor] = {}
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

    def tensor(self, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor at a place, checked against the size of the memory; the same object every time."""
        known = self._tensors.get((offset, dtype, shape))
        if known is not None:
            return known
        count = math.prod(shape)
        if offset % _ALIGNMENT or offset + count * dtype.itemsize > self.size:
            raise WireError(f"shared memory: {dtype} {shape} at {offset} does not lie in {self.size} bytes")
        if not count:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=self._begin + offset)
        tensor = self._tensors[offset, dtype, shape] = flat.view(shape)
        return tensor

    def buffer(self, size: int, owner: object) -> Any:
        """The first bytes, as a buffer to make tensors on; `owner` lives as long as the last of them.

        The mapping is not kept by it: the owner must hold on to this region.
        """
        buffer: Any = (ctypes.c_char * size).from_address(self.address)
        buffer.owner = owner  # an array may carry what must live as long as it does
        return buffer


def offsets_of(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where pieces of these sizes begin when laid one after the other, and how many bytes that takes."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end
