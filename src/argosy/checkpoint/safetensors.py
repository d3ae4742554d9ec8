"""The safetensors format: a header in JSON, then the bytes of the tensors. Nothing in it can run.

Written here and not by the library of that name, which would copy the pieces of flat memory that we have.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from argosy.checkpoint import disk
from argosy.errors import UNDECODABLE, CheckpointDamaged
from argosy.protocol.frames import ITEMSIZE, Dtype, FrameSpec
from argosy.wire.tensor_bytes import bytes_of, dtype_name, tensor_of

_CODES: dict[Dtype, str] = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_DTYPES = {code: name for name, code in _CODES.items()}
_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 256 * 2**20


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: `tensor` is contiguous, on the CPU, and stands for this name."""

    name: str
    tensor: torch.Tensor


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in a file."""

    spec: FrameSpec
    offset: int


def write(path: Path, entries: Iterable[Entry]) -> tuple[int, str]:
    """Write a file; its size and its SHA-256, which are known when it is on the disk."""
    # Large elements first: then each tensor begins where its elements may.
    ordered = sorted(entries, key=lambda entry: -entry.tensor.element_size())
    header: dict[str, Any] = {}
    offset = 0
    for entry in ordered:
        size = entry.tensor.numel() * entry.tensor.element_size()
        code = _CODES[dtype_name(entry.tensor.dtype, entry.name)]
        shape = list(entry.tensor.shape)
        header[entry.name] = {"dtype": code, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()

    def parts() -> Iterable[Any]:
        yield _LENGTH.pack(len(text)) + text
        for entry in ordered:
            yield bytes_of(entry.tensor)

    def hashed() -> Iterable[Any]:
        for part in parts():
            digest.update(part)
            yield part

    disk.write_file(path, hashed())
    return _LENGTH.size + len(text) + offset, digest.hexdigest()


class Reader:
    """One file, from which tensors are read by name, whole or in part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.places = _places(path)
        except (OSError, LookupError, TypeError, AttributeError, struct.error, *UNDECODABLE) as error:
            raise CheckpointDamaged(path, f"not a safetensors file ({error})") from None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """A tensor; with `start` and `stop`, these of its elements, flat."""
        place = self.places[name]
        whole = stop is None
        stop = place.spec.count if stop is None else stop
        size = ITEMSIZE[place.spec.dtype]
        buffer = bytearray((stop - start) * size)
        with self.path.open("rb") as file:
            file.seek(place.offset + start * size)
            if file.readinto(buffer) != len(buffer):
                raise CheckpointDamaged(self.path, "the file is truncated")
        return tensor_of(place.spec if whole else FrameSpec(place.spec.dtype, (stop - start,)), buffer)


def _places(path: Path) -> dict[str, Place]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if length > min(size, _LARGEST_HEADER):
            raise ValueError(f"a header of {length} bytes")
        header: Mapping[str, Any] = json.loads(file.read(length))
    first = _LENGTH.size + length
    places: dict[str, Place] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        shape: Sequence[int] = entry["shape"]
        spec = FrameSpec(_DTYPES[entry["dtype"]], tuple(shape))
        start, stop = entry["data_offsets"]
        if stop - start != spec.nbytes or not 0 <= start <= stop <= size - first:
            raise ValueError(f"{name} does not fit")
        places[name] = Place(spec, first + start)
    return places
