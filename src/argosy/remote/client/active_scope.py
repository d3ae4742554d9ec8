"""The device scope of each thread, and the clients that are open in this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from argosy.errors import ConfigError

if TYPE_CHECKING:
    from argosy.remote.client.cluster_client import Client
    from argosy.remote.client.device_name import DeviceName
    from argosy.remote.client.handle import RemoteDevice

# The last one is used where none is named.
open_clients: list[Client] = []


class _Scope(threading.local):
    """The device that the innermost `argosy.device` of this thread names."""

    device: RemoteDevice | None = None
    name: DeviceName | None = None
    watched: bool = False  # whether operations without remote tensors are dispatched too
    # The devices of forward operations that did not run where their inputs were, by autograd's sequence
    # number.
    forward: dict[int, RemoteDevice] | None = None


scope = _Scope()


def current_client() -> Client:
    """The client that was opened last."""
    while open_clients and open_clients[-1].closed:
        open_clients.pop()
    if not open_clients:
        raise ConfigError("device", "a connected client", "none", "call argosy.connect() first")
    return open_clients[-1]
