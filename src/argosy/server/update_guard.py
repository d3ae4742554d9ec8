"""Makes an update that a killed process has left half done whole again.

An update is made in chunks. Before a chunk is changed, its bytes are copied aside; two numbers say which
chunk is guarded so, and how many are done. The next process makes the same update from the same gradients: it
passes over the chunks that are done, and sets back the one that was being changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

# Of all tensors of one chunk together: larger ones leave the processor's cache, smaller ones cost more calls.
GUARD_BYTES = 768 * 1024
# The step of the update, how many chunks of it are done, and the number of the guarded one plus 1.
GUARD_WORDS = 3
# Chunks begin where the kernels' vectors do, so that every element is computed as in one piece.
_UNIT = 1024

Spans = Sequence[tuple[int, int]]  # addresses and sizes


def chunk_of(tensors: Sequence[torch.Tensor]) -> int:
    """How many elements of these a chunk has."""
    return max(_UNIT, GUARD_BYTES // sum(tensor.itemsize for tensor in tensors) // _UNIT * _UNIT)


def spans_of(tensors: Sequence[torch.Tensor]) -> Spans:
    """Where the bytes of tensors lie."""
    return [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors]


class UpdateGuard:
    """The guard of one server's updates; `words` and `area` outlive the process."""

    def __init__(self, words: memoryview, area: torch.Tensor) -> None:
        self._words = words
        self._area = area
        self._place = area.data_ptr()
        self._number = 0
        self._passed = 0

    def begin(self, step: int) -> None:
        """The update that makes `step` begins, or is taken up again."""
        words = self._words
        self._number = 0
        if words[0] != step:
            words[2] = 0
            words[1] = 0
            words[0] = step
        self._passed = words[1]

    def change(self, spans: Spans, change: Callable[[], None], passed: Callable[[], None]) -> None:
        """Change the bytes at `spans`, unless that was done before: then `passed` is called."""
        words = self._words
        number = self._number
        self._number = number + 1
        if number < self._passed:
            passed()
            return
        place = self._place
        if words[2] == number + 1 and words[1] == number:  # it was being changed
            for address, size in spans:
                ctypes.memmove(address, place, size)
                place += size
        else:
            for address, size in spans:
                ctypes.memmove(place, address, size)
                place += size
            words[2] = number + 1
        change()
        words[1] = number + 1
