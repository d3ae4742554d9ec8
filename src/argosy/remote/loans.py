"""Memory of another process, lent for as long as a tensor in it lives.

A slot is lent with each message in it, and given back when no frame of that message is in use. What is kept
for long is no loan: beyond a limit frames are copied, so that the lender can go on.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from argosy.wire.frames import FrameSpec
from argosy.wire.shared_memory import Region, place
from argosy.wire.tensors import bytes_of

# So much may be borrowed in this process at a time, in bytes.
_MOST = 128 * 2**20


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

    def lend(self, sizes: Sequence[int]) -> list[Any]:
        """Buffers of these sizes, one after the other."""
        placed, size = place([FrameSpec("uint8", (size,)) for size in sizes])
        tensors = [self._region.tensor(where) for where in placed]
        if not _borrowed.take(size):
            copies = [bytes_of(tensor.clone()) for tensor in tensors]
            self._give_back()
            return copies
        loan = _Loan(size, self._give_back, self._region)
        buffers = []
        for tensor in tensors:
            buffer = (ctypes.c_char * tensor.numel()).from_address(tensor.data_ptr())
            buffer.loan = loan  # type: ignore[attr-defined]
            buffers.append(buffer)
        return buffers


class _Loan:
    """Held by the buffers of one message; ends with the last of them."""

    __slots__ = ("_give_back", "_region", "_size")

    def __init__(self, size: int, give_back: Callable[[], None], region: Region) -> None:
        self._size = size
        self._give_back = give_back
        self._region = region  # mapped for as long as somebody reads it

    def __del__(self) -> None:
        _borrowed.give(self._size)
        self._give_back()
