"""The memory of a lane's sender: slots for one message each, which the receiver gives back.

The number of a slot is its name on the lane; its memory goes to the receiver with the first message in it.
A tensor of this process may lie in a slot too, as it was made there in order to be sent: the slot waits for
the end of both.
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
# So much may be held by tensors of this process, in bytes: slots stay, memory of torch's own comes back.
_MOST_HELD = 64 * 2**20


class Slot:
    """Memory for one message at a time. `descriptor`: of memory that the receiver has not been given yet."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.region, descriptor = Region.create(size)
        self.descriptor: int | None = descriptor
        self.memory = self.region.everything()
        self.busy = True  # it is being filled, or the receiver has it
        self.held = False  # by a tensor of this process
        self.retired = False

    @property
    def free(self) -> bool:
        """Whether the next message may go in here."""
        return not (self.busy or self.held or self.retired)

    @property
    def over(self) -> bool:
        """Whether nobody has to do with it any more: its number may be given to another."""
        return self.retired and not (self.busy or self.held)

    def tensor(self, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        """A tensor in here, without gaps; it holds the slot for as long as it, or a view of it, lives."""
        buffer = self.region.buffer(self.region.size, _Hold(self))
        flat = torch.frombuffer(buffer, dtype=dtype, count=math.prod(shape))
        return flat.as_strided(shape, stride)

    def take_back(self) -> None:
        """From now on the tensor in here has its memory to itself: the receiver goes on with what it was
        sent, and no message comes in here any more.
        """
        if not self.retired:
            self.retired = True
            self.region.make_private()


class _Hold:
    """Lives as long as the tensor in a slot."""

    __slots__ = ("_region", "_slot")

    def __init__(self, slot: Slot) -> None:
        slot.held = True
        self._slot = slot
        self._region = slot.region  # mapped for as long as somebody reads it

    def __del__(self) -> None:
        self._slot.held = False


class Slots:
    """All that a sender has; not thread-safe."""

    def __init__(
        self, sock: socket.socket, on_full: Callable[[socket.socket, bool], None], most: float
    ) -> None:
        self._sock = sock
        self._on_full = on_full
        self._most = most
        self._slots: list[Slot] = []
        self._acks = b""
        self.spoilt = False  # somebody writes to what was made in a slot, while the receiver reads it

    def take(self, size: int) -> Slot:
        """A slot of this size that nobody reads; with too much under way, when the receiver gives some back.
        BrokenPipeError: it never will.
        """
        self.hear()
        while sum([slot.region.size for slot in self._slots if slot.busy]) > self._most:
            self._on_full(self._sock, False)
            self.hear()
        for slot in self._slots:
            if slot.free and size <= slot.region.size <= 4 * size:
                slot.busy = True
                return slot
        number = next((slot.number for slot in self._slots if slot.over), len(self._slots))
        self._slots[number : number + 1] = [Slot(number, size)]
        return self._slots[number]

    def take_berth(self, size: int) -> Slot | None:
        """One for a tensor of this process; None if too much is held."""
        held = sum([slot.region.size for slot in self._slots if slot.held])
        return None if held + size > _MOST_HELD else self.take(size)

    def retake(self, slot: Slot) -> bool:
        """Whether a slot that is held here may be sent once more."""
        self.hear()
        if slot.busy or slot.retired:
            return False
        slot.busy = True
        return True

    def hear(self) -> None:
        """What the receiver has given back."""
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
            if number < len(self._slots):
                self._slots[number].busy = False
        self._acks = self._acks[whole:]

    def close(self) -> None:
        """Let go of the memory."""
        for slot in self._slots:
            if slot.descriptor is not None:
                os.close(slot.descriptor)
        self._slots.clear()
