"""Tensor frames on the wire: what may travel, checked before anything is allocated. No sockets, no torch.

A frame is a dtype, a shape and exactly so many bytes. `tensors.py` turns frames into tensors and back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec

from argosy.errors import WireError

Dtype: TypeAlias = Literal[
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"
]
ITEMSIZE: dict[Dtype, int] = {
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
# No larger frame is sent or taken in. A larger tensor travels as several: the layout cuts it into blocks.
MAX_FRAME_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 16 * 2**20
MAX_FRAMES = 4096

_MAX_COUNT = 2**40
Dimension = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT)]


class FrameSpec(msgspec.Struct, frozen=True, array_like=True):
    """What a frame's bytes mean."""

    dtype: Dtype
    shape: Annotated[tuple[Dimension, ...], msgspec.Meta(max_length=16)]

    def __post_init__(self) -> None:
        # Also where there are no elements at all: torch multiplies the other dimensions into strides.
        if math.prod(size or 1 for size in self.shape) > _MAX_COUNT:
            raise ValueError(f"a shape of at most {_MAX_COUNT} elements, got {list(self.shape)}")

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.count * ITEMSIZE[self.dtype]


def check_frames(specs: Sequence[FrameSpec], sizes: Sequence[int]) -> None:
    """Refuse frames whose sizes are not what their specs say."""
    if len(specs) != len(sizes):
        raise WireError(f"frames: expected {len(specs)} as the header says, got {len(sizes)}")
    for index, (spec, size) in enumerate(zip(specs, sizes, strict=True)):
        if spec.nbytes != size:
            raise WireError(f"frame {index}: expected {spec.nbytes} bytes of {spec.dtype}, got {size}")
