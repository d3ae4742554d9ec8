"""Random numbers on tasks, governed by the client's own generator.

Each task has a generator of its own. When the client's default generator is no longer as it was left here, it
was seeded or drawn from: then the tasks begin anew, from its seed if it is fresh, else from its state. So a
program that begins with `torch.manual_seed` draws the same numbers every time it runs; and the first task to
draw after that draws what the client itself would have drawn.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from argosy.remote.operations.instructions import SEED
from argosy.torch_private import without_dispatch
from argosy.wire.tensors import bytes_of

if TYPE_CHECKING:
    from argosy.remote.client.cluster_client import Client
    from argosy.remote.client.handle import RemoteDevice
    from argosy.remote.client.outbox import Outbox

# In the state of the CPU's generator: where it says how much is left of a block, and where the next is.
_LEFT, _NEXT = slice(8, 12), slice(16, 24)


class Seeds:
    """Follows the client's default generator."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._state = torch.empty(0, dtype=torch.uint8)
        self._seed = 0
        self._seeded: set[Outbox] = set()

    def follow(self, device: RemoteDevice) -> None:
        """Before a random operation on a device."""
        with without_dispatch():
            self._follow(device, torch.default_generator)

    def _follow(self, device: RemoteDevice, generator: torch.Generator) -> None:
        if not torch.equal(generator.get_state(), self._state):
            state = bytes(bytes_of(generator.get_state()))
            fresh = int.from_bytes(state[_LEFT], "little") == 1 and not any(state[_NEXT])
            self._seed = generator.initial_seed() if fresh else _digest(state)
            self._seeded.clear()
            # Leave a mark, so that the same seed given again is noticed.
            torch.empty(1).uniform_(generator=generator)
            self._state = generator.get_state()
        if device.outbox not in self._seeded:
            seed = self._seed if not self._seeded else _digest(f"{self._seed} {device.outbox.name}".encode())
            self._seeded.add(device.outbox)
            with self._client.lock:
                device.outbox.batch.extend((SEED, seed))


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little") >> 1
