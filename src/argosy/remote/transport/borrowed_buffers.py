"""Memory of another process, borrowed for as long as a tensor in it lives.

A buffer is borrowed with each message in it, and acknowledged when no frame of that message is in use. Beyond
a limit frames are copied instead, so that the sender gets its buffers back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argosy.errors import WireError
from argosy.shared_memory.region import Region, offsets_of

# This process borrows at most this many bytes at a time.
_MOST = 128 * 2**20
_NOTHING = torch.empty(0, dtype=torch.uint8)


class _BorrowedBytes:
    """How many bytes are borrowed at the moment."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may end a loan inside either method
        self._bytes = 0

    def take(self, size: int) -> bool:
        """Count them in; False if that would be too many."""
        with self._lock:
            if self._bytes + size > _MOST:
                return False
            self._bytes += size
            return True

    def give(self, size: int) -> None:
        """Count them out."""
        with self._lock:
            self._bytes -= size


_borrowed = _BorrowedBytes()


class PeerBuffer:
    """One buffer of the sender, mapped in this process."""

    def __init__(self, region: Region, acknowledge: Callable[[], None]) -> None:
        self._region = region
        self._acknowledge = acknowledge

    def borrow(self, sizes: Sequence[int]) -> list[torch.Tensor]:
        """The frames of a message, given their sizes."""
        offsets, size = offsets_of(sizes)
        if size > self._region.size:
            raise WireError(f"message: expected at most {self._region.size} bytes in its buffer, got {size}")
        if not _borrowed.take(size):
            memory = self._region.everything()
            pieces = zip(offsets, sizes, strict=True)
            copies = [memory[offset : offset + length].clone() for offset, length in pieces]
            self._acknowledge()
            return copies
        if not size:
            self._acknowledge()
            return [_NOTHING] * len(sizes)
        array = self._region.buffer(size, _Loan(size, self._acknowledge, self._region))
        # Each frame has its own storage: they share nothing but the loan.
        pieces = zip(offsets, sizes, strict=True)
        return [_frame(array, offset, length) if length else _NOTHING for offset, length in pieces]


def _frame(array: Any, offset: int, length: int) -> torch.Tensor:
    return torch.frombuffer(array, dtype=torch.uint8, count=length, offset=offset)


class _Loan:
    """The use of a buffer by one message; ends with the last tensor in it."""

    __slots__ = ("_acknowledge", "_region", "_size")

    def __init__(self, size: int, acknowledge: Callable[[], None], region: Region) -> None:
        self._size = size
        self._acknowledge = acknowledge
        self._region = region  # stays mapped for as long as a tensor lives

    def __del__(self) -> None:
        _borrowed.give(self._size)
        self._acknowledge()
