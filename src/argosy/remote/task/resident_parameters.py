"""Parameters that live in a send buffer, so that each replay of a captured step sends them without a copy.

A step that repeats sends a parameter and updates it. Before an update, when nothing else uses the parameter,
it moves into a send buffer; from then on only a message is sent. The receiver acknowledges the buffer when it
has read it. If an update comes sooner, the buffer is taken back, and the parameter is copied for a while: in
the first steps of a program a receiver may keep values longer than it does later.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from argosy.protocol.header import Header
from argosy.remote.plan.direct_sends import MIN_BYTES
from argosy.remote.task.scheduler import Storage
from argosy.remote.transport.same_host import SameHostSender
from argosy.remote.transport.send_buffers import SendBuffer
from argosy.torch_private import storage_key, storage_uses

# The use count of a storage with one tensor: that tensor, and the Python object that asks.
_ONE_TENSOR = 2
# The number of copies before the first new attempt; each later pause is this many times longer.
_PAUSE = 4


@dataclass
class ResidentTensor:
    """The buffer in which a tensor lives. Once it was taken back, the tensor is copied `pause` times before
    it moves again; `copies_left` of them remain.
    """

    sender: SameHostSender
    buffer: SendBuffer
    pause: int
    copies_left: int


def send_resident(storage: Storage, sender: SameHostSender, header: Header, frame: torch.Tensor) -> bool:
    """Send a tensor from the buffer in which it lives; False if it is not there, or is still being read."""
    resident = storage.resident
    if resident is None or resident.sender is not sender:
        return False
    if frame.data_ptr() != resident.buffer.region.address:
        return False
    if not sender.send_again(header, resident.buffer, frame.numel()):
        return False
    storage.on_write = partial(sender.reclaim, resident.buffer)
    return True


def move_at_next_write(storage: Storage, sender: SameHostSender, tensor: torch.Tensor) -> None:
    """Let a tensor move into a buffer before it is next written to: then nothing else uses it."""
    if tensor.nbytes < MIN_BYTES or storage.on_write is not None:
        return
    resident, pause = storage.resident, _PAUSE
    if resident is not None:
        if resident.sender is not sender or not resident.buffer.retired:
            return
        resident.copies_left -= 1
        if resident.copies_left:
            return
        resident.copies_left = resident.pause
        pause = resident.pause * _PAUSE
    storage.on_write = partial(_move, storage, sender, tensor, pause)


@torch.no_grad()
def _move(storage: Storage, sender: SameHostSender, tensor: torch.Tensor, pause: int) -> None:
    """Move it, unless it has views, or the sender has no buffer for it."""
    memory = tensor.untyped_storage()
    is_shared = storage_uses(storage_key(memory)) > _ONE_TENSOR
    if is_shared or memory.nbytes() != tensor.nbytes:
        return
    if (buffer := sender.reserve_resident(tensor.nbytes)) is None:
        return
    moved = buffer.tensor(tensor.dtype, tensor.shape, tensor.stride()).copy_(tensor)
    tensor.set_(moved.untyped_storage(), 0, tensor.shape, tensor.stride())
    sender.cancel(buffer)
    storage.resident = ResidentTensor(sender, buffer, pause, pause)
