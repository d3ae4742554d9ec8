"""Random numbers on tasks follow the client's default generator.

Each task has its own generator. If the state of the client's generator has changed since the last look, it
was seeded or drawn from: then the tasks are seeded anew, with its seed if nothing was drawn since, else with
a hash of its state. So a program that begins with `torch.manual_seed` draws the same numbers every time, and
the first task to draw after that draws what the client itself would have drawn.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from argosy.remote.operations.instructions import SEED
from argosy.torch_private import without_dispatch
from argosy.wire.tensor_bytes import bytes_of

if TYPE_CHECKING:
    from argosy.remote.client.cluster_client import Client
    from argosy.remote.client.handle import RemoteDevice
    from argosy.remote.client.outbox import Outbox


class Seeds:
    """Follows the client's default generator."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._state = torch.empty(0, dtype=torch.uint8)
        self._seed = 0
        self._seeded: set[Outbox] = set()

    def follow(self, device: RemoteDevice) -> None:
        """Call this before a random operation on a device."""
        generator = torch.default_generator
        with without_dispatch():
            if not torch.equal(generator.get_state(), self._state):
                state, seed = generator.get_state(), generator.initial_seed()
                is_fresh = torch.equal(state, torch.Generator().manual_seed(seed).get_state())
                self._seed = seed if is_fresh else _digest(bytes(bytes_of(state)))
                self._seeded.clear()
                # Draw once, so that a new `manual_seed` with the same seed changes the state.
                torch.empty(1).uniform_(generator=generator)
                self._state = generator.get_state()
        if device.outbox not in self._seeded:
            seed = self._seed if not self._seeded else _digest(f"{self._seed} {device.outbox.name}".encode())
            self._seeded.add(device.outbox)
            with self._client.lock:
                device.outbox.batch.extend((SEED, seed))


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little") >> 1
