"""Memory in pages of 2 MB, where the kernel has them.

Every step goes through all of a model's parameters, gradients and optimizer state, and the processor must
look up where each page of it lies: with pages of 4 kB, in a virtual machine, that is a good part of the time.
Large pages are a wish: where there are none the memory is ordinary, and nothing else is different.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os

import torch

LARGE = 2 * 2**20
# Below this, too much of a page would stay empty.
_WORTH_IT = LARGE // 2
# Tensors that begin at the same place in their pages get in each other's way in the processor's caches: each
# begins so many bytes after the one before, and in another line.
_STAGGER = 3 * 4096
_turns = itertools.count(1)
_MADV_COLLAPSE = 25  # Linux 6.1; Python's mmap does not name these two
_MAP_FIXED = 0x10


def whole_pages(size: int) -> int:
    """A size that fills its large pages, or the same if it is too small for them."""
    return -(-size // LARGE) * LARGE if size >= _WORTH_IT else size


def map_shared(descriptor: int, size: int, offset: int = 0) -> tuple[mmap.mmap, int]:
    """The memory behind a descriptor, and where in the mapping it begins: a large page must begin at one."""
    if size < LARGE or size % LARGE or offset % LARGE:
        return mmap.mmap(descriptor, size, offset=offset), 0
    memory, begin = _aligned(size)
    place = _address(memory) + begin
    map_at(place, size, mmap.MAP_SHARED, descriptor, offset)
    return memory, begin


def gather_shared(descriptor: int, memory: mmap.mmap, begin: int, size: int, offset: int = 0) -> None:
    """Put the new memory behind a descriptor, mapped here, into large pages: for everybody who maps it."""
    with contextlib.suppress(OSError):
        os.posix_fallocate(descriptor, offset, size)
        memory.madvise(_MADV_COLLAPSE, begin, size)


def map_at(address: int, size: int, kind: int, descriptor: int = -1, offset: int = 0) -> None:
    """Map memory at an address that is ours, in place of what is there."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    access = mmap.PROT_READ | mmap.PROT_WRITE
    if libc.mmap(address, size, access, kind | _MAP_FIXED, descriptor, offset) != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """As `torch.empty_like`, for a contiguous tensor on the CPU that stays as long as this process trains."""
    if tensor.nbytes < _WORTH_IT:
        return torch.empty_like(tensor)
    stagger = next_stagger()
    size = whole_pages(tensor.nbytes + stagger)
    memory, begin = _aligned(size)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE, begin, size)
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=begin + stagger)
    return flat.view(tensor.shape)


def next_stagger() -> int:
    """How many bytes after the beginning of its pages the next large tensor should begin."""
    turn = next(_turns)
    return turn % 8 * _STAGGER + turn % 64 * 64


def _aligned(size: int) -> tuple[mmap.mmap, int]:
    """New memory, and where in it `size` bytes begin that begin at a large page."""
    memory = mmap.mmap(-1, size + LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memory, -_address(memory) % LARGE


def _address(memory: mmap.mmap) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr()
