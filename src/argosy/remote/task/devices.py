"""The devices that a task offers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from argosy.cluster.cores import obey_threads
from argosy.errors import ConfigError


def find_devices(visible: Sequence[str] | None = None, allow_growth: bool = True) -> tuple[str, ...]:
    """`cpu:0`, and `gpu:N` for each GPU that is `visible`, or for every GPU.

    Without `allow_growth`, nearly all memory of each GPU is allocated at once, so that no other process takes
    it.
    """
    obey_threads()
    there = ("cpu:0", *(f"gpu:{number}" for number in range(torch.cuda.device_count())))
    for name in visible or ():
        if name not in there:
            raise ConfigError("visible_devices", f"some of {', '.join(there)}", name)
    found = tuple(name for name in there if visible is None or name in visible or name == "cpu:0")
    if not allow_growth:
        for name in found[1:]:
            _take_memory(torch.device("cuda", int(name.partition(":")[2])))
    return found


def _take_memory(device: torch.device) -> None:
    free, _ = torch.cuda.mem_get_info(device)
    # Freed at once, it stays in torch's cache.
    torch.empty(int(free * 0.9), dtype=torch.uint8, device=device)
