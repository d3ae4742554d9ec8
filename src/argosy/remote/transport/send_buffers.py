"""A sender's shared memory: a pool of buffers, each for one message at a time.

A buffer is known to the receiver by its number. Its memory travels with the first message in it, and the
receiver acknowledges every message that it has finished reading. A tensor of this process may also live in a
buffer, because it was computed there to be sent: the buffer is free again when both are done with it.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
from collections.abc import Callable, Sequence

import torch

from argosy.shared_memory.region import Region

ACK = struct.Struct("<I")
# Tensors of this process may hold this many bytes of buffers, which, unlike torch's memory, are never freed.
_MOST_HELD = 64 * 2**20


class SendBuffer:
    """Memory for one message at a time. `descriptor`: set until the receiver has been given the memory."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.region, descriptor = Region.create(size)
        self.descriptor: int | None = descriptor
        self.memory = self.region.everything()
        self.busy = True  # it is being filled, or the receiver reads it
        self.held = False  # by a tensor of this process
        self.retired = False

    @property
    def free(self) -> bool:
        """Whether the next message may go in here."""
        return not (self.busy or self.held or self.retired)

    @property
    def over(self) -> bool:
        """Whether it is no longer in use, so that its number may go to another buffer."""
        return self.retired and not (self.busy or self.held)

    def tensor(self, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        """A dense tensor in this memory; it holds the buffer for as long as it, or a view of it, lives."""
        array = self.region.buffer(self.region.size, _Hold(self))
        flat = torch.frombuffer(array, dtype=dtype, count=math.prod(shape))
        return flat.as_strided(shape, stride)

    def take_back(self) -> None:
        """Give the tensor in here private memory: the receiver keeps what it was sent, and the buffer carries
        no more messages.
        """
        if not self.retired:
            self.retired = True
            self.region.make_private()


class _Hold:
    """Lives as long as the tensor in a buffer."""

    __slots__ = ("_buffer", "_region")

    def __init__(self, buffer: SendBuffer) -> None:
        buffer.held = True
        self._buffer = buffer
        self._region = buffer.region  # stays mapped for as long as the tensor lives

    def __del__(self) -> None:
        self._buffer.held = False


class SendBufferPool:
    """All buffers of a sender; not thread-safe."""

    def __init__(
        self, sock: socket.socket, on_full: Callable[[socket.socket, bool], None], most: float
    ) -> None:
        self._sock = sock
        self._on_full = on_full
        self._most = most
        self._buffers: list[SendBuffer] = []
        self._acks = b""
        self.revoked = False  # a tensor in a buffer was written to while the receiver still read it

    def take(self, size: int) -> SendBuffer:
        """A free buffer of this size. With too many bytes unread, it waits for the receiver; a
        BrokenPipeError says that the receiver has gone.
        """
        self.read_acknowledgements()
        while sum([buffer.region.size for buffer in self._buffers if buffer.busy]) > self._most:
            self._on_full(self._sock, False)
            self.read_acknowledgements()
        for buffer in self._buffers:
            if buffer.free and size <= buffer.region.size <= 4 * size:
                buffer.busy = True
                return buffer
        number = next((buffer.number for buffer in self._buffers if buffer.over), len(self._buffers))
        self._buffers[number : number + 1] = [SendBuffer(number, size)]
        return self._buffers[number]

    def take_to_keep(self, size: int) -> SendBuffer | None:
        """A buffer for a tensor of this process; None if such tensors hold too many bytes."""
        held = sum([buffer.region.size for buffer in self._buffers if buffer.held])
        return None if held + size > _MOST_HELD else self.take(size)

    def retake(self, buffer: SendBuffer) -> bool:
        """Take a buffer in which a tensor lives for another message; False if the receiver still reads it."""
        self.read_acknowledgements()
        if buffer.busy or buffer.retired:
            return False
        buffer.busy = True
        return True

    def read_acknowledgements(self) -> None:
        """Free the buffers that the receiver has finished reading."""
        with contextlib.suppress(BlockingIOError):
            while True:
                data = self._sock.recv(4096)
                if not data:
                    raise BrokenPipeError
                self._acks += data
                if len(data) < 4096:
                    break
        whole = len(self._acks) // ACK.size * ACK.size
        for (number,) in ACK.iter_unpack(self._acks[:whole]):
            if number < len(self._buffers):
                self._buffers[number].busy = False
        self._acks = self._acks[whole:]

    def close(self) -> None:
        """Free the memory."""
        for buffer in self._buffers:
            if buffer.descriptor is not None:
                os.close(buffer.descriptor)
        self._buffers.clear()
