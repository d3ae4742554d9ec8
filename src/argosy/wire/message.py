"""A message: a typed header, and tensor frames after it. Encoding and decoding, without sockets.

The header is msgpack, decoded by msgspec against the types in `protocol/`: what is not one of them gets no
further than this file. No pickle, and nothing that is sent is ever run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from argosy.errors import UNDECODABLE, WireError
from argosy.protocol.frames import MAX_FRAMES, MAX_HEADER_BYTES, FrameSpec, check_frames
from argosy.protocol.header import Header

if TYPE_CHECKING:
    import torch

H = TypeVar("H", bound=Header, covariant=True)


class Message(msgspec.Struct, Generic[H], frozen=True):
    """What arrived: the header, and its tensors."""

    header: H
    tensors: Sequence[torch.Tensor] = ()


class _Envelope(msgspec.Struct, array_like=True):
    header: Header
    frames: list[FrameSpec]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Envelope)


def encode(header: Header, tensors: Sequence[torch.Tensor] = ()) -> list[Any]:
    """The parts to send: the header, then the memory of each tensor (contiguous, on the CPU)."""
    if not tensors:
        return [_encoder.encode(_Envelope(header, []))]
    from argosy.wire.tensor_bytes import bytes_of, spec_of

    head = _encoder.encode(_Envelope(header, [spec_of(tensor) for tensor in tensors]))
    return [head, *(bytes_of(tensor) for tensor in tensors)]


def blank(frames: Sequence[FrameSpec]) -> list[torch.Tensor]:
    """Tensors of these kinds in ordinary memory, for a channel that sends from anywhere."""
    import torch

    from argosy.wire.tensor_bytes import torch_dtype

    return [torch.zeros(frame.shape, dtype=torch_dtype(frame.dtype)) for frame in frames]


def decode(parts: Sequence[Any]) -> Message[Header]:
    """The message in received parts; everything is checked before a tensor is made of it."""
    if not parts or len(parts) - 1 > MAX_FRAMES:
        raise WireError(f"message: expected a header and at most {MAX_FRAMES} frames, got {len(parts)} parts")
    views = [memoryview(part) for part in parts]
    if views[0].nbytes > MAX_HEADER_BYTES:
        raise WireError(f"header: expected at most {MAX_HEADER_BYTES} bytes, got {views[0].nbytes}")
    try:
        envelope = _decoder.decode(views[0])
    except UNDECODABLE as error:
        raise WireError(f"header: {error}") from None
    check_frames(envelope.frames, [view.nbytes for view in views[1:]])
    if not envelope.frames:
        return Message(envelope.header)
    from argosy.wire.tensor_bytes import tensor_of

    tensors = [tensor_of(spec, view) for spec, view in zip(envelope.frames, views[1:], strict=True)]
    return Message(envelope.header, tensors)
