"""What a server keeps: tensors and small values, in memory that may outlive its process.

The launcher holds a memfd for each server and hands it to every process of that task, so a server that was
killed finds all it had committed. Without a launcher the memory is ordinary, and commits cost nothing.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch

from argosy.server.record_store import WORDS, RecordStore
from argosy.server.update_guard import GUARD_BYTES, GUARD_WORDS, UpdateGuard
from argosy.shared_memory.large_pages import (
    LARGE,
    empty_like,
    gather_shared,
    map_shared,
    next_stagger,
    whole_pages,
)

_place_decoder = msgspec.msgpack.Decoder(tuple[int, int, int])
_MAGIC = 0x61726773_00000001  # the last digits: the version of this layout
_HEADER = mmap.PAGESIZE
_FIRST_GUARD_WORD = 2 + WORDS
_MOST_WORDS = _FIRST_GUARD_WORD + GUARD_WORDS


class Memory(Protocol):
    """What a server needs of it."""

    lasts: bool  # whether it outlives the process
    found: bool  # whether an earlier process of this task has left something
    guard: UpdateGuard | None

    def tensor(self, name: str, like: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """The tensor of this name, and whether it was there: a new one holds nothing yet."""

    def put(self, name: str, value: bytes) -> None:
        """A small value, valid with the next commit."""

    def drop(self, name: str) -> None:
        """No such value, with the next commit."""

    def get(self, name: str) -> bytes | None:
        """A small value that was committed."""

    def names(self, prefix: str) -> Sequence[str]:
        """The names of committed values that begin with this."""

    def commit(self) -> None:
        """From now on the next process of this task finds what was put."""


class OrdinaryMemory:
    """Ends with the process."""

    lasts = False
    found = False
    guard: UpdateGuard | None = None

    def tensor(self, name: str, like: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """See `Memory`."""
        return empty_like(like), False

    def put(self, name: str, value: bytes) -> None:
        """See `Memory`."""

    def drop(self, name: str) -> None:
        """See `Memory`."""

    def get(self, name: str) -> bytes | None:
        """See `Memory`."""
        return None

    def names(self, prefix: str) -> Sequence[str]:
        """See `Memory`."""
        return ()

    def commit(self) -> None:
        """See `Memory`."""


class DurableMemory:
    """In a memfd that somebody else holds, too; this process's descriptor is closed with it."""

    lasts = True

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.found = os.fstat(descriptor).st_size > 0
        if not self.found:
            os.ftruncate(descriptor, _HEADER)
        header = mmap.mmap(descriptor, _HEADER)
        self._words = memoryview(header).cast("q")
        # A process that was killed right here has left an empty header, which is as good as none.
        if self._words[0] != _MAGIC:
            self.found = False
            self._words[1] = _HEADER
        self._records = RecordStore(self._words[2 : 2 + WORDS], self)
        guarded, _ = self.tensor("guard", torch.empty(GUARD_BYTES, dtype=torch.uint8))
        self.guard: UpdateGuard | None = UpdateGuard(self._words[_FIRST_GUARD_WORD:_MOST_WORDS], guarded)
        self._words[0] = _MAGIC

    # --- room ---------------------------------------------------------------------------------------------
    def allocate(self, size: int) -> int:
        """See `Space`."""
        unit = LARGE if size >= LARGE else mmap.PAGESIZE
        offset = -(-self._words[1] // unit) * unit
        os.ftruncate(self._descriptor, offset + size)
        self._words[1] = offset + size
        return offset

    def view(self, offset: int, size: int) -> memoryview:
        """See `Space`."""
        return memoryview(mmap.mmap(self._descriptor, size, offset=offset))

    # --- tensors ------------------------------------------------------------------------------------------
    def tensor(self, name: str, like: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """See `Memory`. Its place is committed at once: it may be used before anything else is."""
        key = f"tensor/{name}"
        known = self._records.get(key)
        offset, size, begin = (0, 0, 0) if known is None else _place_decoder.decode(known)
        if size < like.nbytes + begin:
            known = None
        if known is None:
            begin = next_stagger() if whole_pages(like.nbytes) != like.nbytes else 0
            size = whole_pages(max(like.nbytes + begin, mmap.PAGESIZE))
            offset = self.allocate(size)
        memory, first = map_shared(self._descriptor, size, offset)
        if known is None:
            if not size % LARGE:
                gather_shared(self._descriptor, memory, first, size, offset)
            self._records.put(key, msgspec.msgpack.encode((offset, size, begin)))
            self._records.commit()
        if not like.numel():
            return torch.empty_like(like), known is not None
        flat = torch.frombuffer(memory, dtype=like.dtype, count=like.numel(), offset=first + begin)
        return flat.view(like.shape), known is not None

    # --- small values -------------------------------------------------------------------------------------
    def put(self, name: str, value: bytes) -> None:
        """See `Memory`."""
        self._records.put(name, value)

    def drop(self, name: str) -> None:
        """See `Memory`."""
        self._records.drop(name)

    def get(self, name: str) -> bytes | None:
        """See `Memory`."""
        return self._records.get(name)

    def names(self, prefix: str) -> Sequence[str]:
        """See `Memory`."""
        return self._records.names(prefix)

    def commit(self) -> None:
        """See `Memory`."""
        self._records.commit()

    def close(self) -> None:
        """Let go of it; the tensors stay as long as they are used."""
        os.close(self._descriptor)
        self._records.close()
        self.guard = None
        self._words.release()
