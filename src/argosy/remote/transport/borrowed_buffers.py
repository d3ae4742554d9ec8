"""Memory of another process, lent for as long as a tensor in it lives.

A slot is lent with each message in it, and given back when no frame of that message is in use. What is kept
for long is no loan: beyond a limit frames are copied, so that the lender can go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from argosy.errors import WireError
from argosy.shared_memory.region import Region, offsets_of

# So much may be borrowed in this process at a time, in bytes.
_MOST = 128 * 2**20
_NOTHING = torch.empty(0, dtype=torch.uint8)


class _Sum:
    """What is borrowed at the moment."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a loan may end, by the garbage collector, within either
        self._bytes = 0

    def take(self, size: int) -> bool:
        """Whether so much more may be borrowed."""
        with self._lock:
            if self._bytes + size > _MOST:
                return False
            self._bytes += size
            return True

    def give(self, size: int) -> None:
        """So much less."""
        with self._lock:
            self._bytes -= size


_borrowed = _Sum()


class Lender:
    """One slot of a peer's memory."""

    def __init__(self, region: Region, give_back: Callable[[], None]) -> None:
        self._region = region
        self._give_back = give_back

    def lend(self, sizes: Sequence[int]) -> list[torch.Tensor]:
        """Frames of these sizes, one after the other."""
        offsets, size = offsets_of(sizes)
        if size > self._region.size:
            raise WireError(f"message: expected at most {self._region.size} bytes in its slot, got {size}")
        if not _borrowed.take(size):
            memory = self._region.everything()
            pieces = zip(offsets, sizes, strict=True)
            copies = [memory[offset : offset + length].clone() for offset, length in pieces]
            self._give_back()
            return copies
        if not size:
            self._give_back()
            return [_NOTHING] * len(sizes)
        buffer = self._region.buffer(size, _Loan(size, self._give_back, self._region))
        # Each in a storage of its own: they share nothing but the loan.
        pieces = zip(offsets, sizes, strict=True)
        return [_frame(buffer, offset, length) if length else _NOTHING for offset, length in pieces]


def _frame(buffer: Any, offset: int, length: int) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=torch.uint8, count=length, offset=offset)


class _Loan:
    """Held by the memory of one message; ends with the last tensor in it."""

    __slots__ = ("_give_back", "_region", "_size")

    def __init__(self, size: int, give_back: Callable[[], None], region: Region) -> None:
        self._size = size
        self._give_back = give_back
        self._region = region  # mapped for as long as somebody reads it

    def __del__(self) -> None:
        _borrowed.give(self._size)
        self._give_back()
