"""A checksum of the first batches that a worker trains on, from a sample of their bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import torch

from argosy.wire.tensor_bytes import bytes_of

BATCHES = 3
_MOST_TENSORS = 8
_SAMPLE = 512  # values of each


class BatchChecksum:
    """Sees each batch, and hears when one is used for a step."""

    def __init__(self) -> None:
        self._seen: int | None = None
        self._used: list[int] = []

    def saw(self, batch: object) -> None:
        """The loop gets this batch."""
        if len(self._used) < BATCHES:
            self._seen = checksum(batch)

    def used(self) -> int:
        """A gradient is given: the checksum of the first batches when it is complete, once; else 0."""
        if self._seen is None:
            return 0
        self._used.append(self._seen)
        self._seen = None
        # All alike: there is one batch only, and no order of batches that workers could have in common.
        if len(self._used) < BATCHES or len(set(self._used)) == 1:
            return 0
        return zlib.crc32(repr(self._used).encode()) or 1


def checksum(batch: object) -> int | None:
    """Of a batch: its tensors and texts; None if it has none, such as a mere number."""
    found = None
    for _, part in zip(range(_MOST_TENSORS), _parts(batch), strict=False):
        found = zlib.crc32(part, found or 0)
    return found


def _parts(batch: Any) -> Iterator[bytes]:
    if type(batch).__module__ == "numpy" and hasattr(batch, "tobytes") and batch.dtype.kind in "fiub":
        batch = torch.as_tensor(batch)
    if isinstance(batch, torch.Tensor):
        yield _sample(batch)
    elif isinstance(batch, str):
        yield batch[:_SAMPLE].encode()
    elif isinstance(batch, dict):
        for each in batch.values():
            yield from _parts(each)
    elif isinstance(batch, list | tuple):
        for each in batch:
            yield from _parts(each)


def _sample(tensor: torch.Tensor) -> bytes:
    """The shape, and values from all over the tensor."""
    dense = tensor.detach()
    dense = dense.to_dense() if dense.layout != torch.strided else dense
    flat = dense.reshape(-1)[:: max(1, dense.numel() // _SAMPLE)].cpu().contiguous()
    return str(tuple(dense.shape)).encode() + bytes(bytes_of(flat))
