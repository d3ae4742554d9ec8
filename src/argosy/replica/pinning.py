"""Memory that a GPU copies from and to by itself, while the CPU goes on. Thin: without CUDA, nothing happens.

The memory is the channel's (shared with a server, or ZeroMQ's to send from), so it is registered with CUDA
where it lies instead of being allocated by torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Pinned:
    """Registers tensors for transfers of a model with these devices; unregisters them in `close`."""

    def __init__(self, tensors: Sequence[torch.Tensor], devices: set[torch.device]) -> None:
        self.devices = sorted((d for d in devices if d.type == "cuda"), key=str)
        self._registered: list[torch.Tensor] = []
        for tensor in tensors if self.devices else ():
            size = tensor.numel() * tensor.element_size()
            if size and int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), size, 0)) == 0:
                self._registered.append(tensor)

    def wait(self) -> None:
        """Until every transfer that was started has ended."""
        for device in self.devices:
            torch.cuda.current_stream(device).synchronize()

    def close(self) -> None:
        """Give the memory back to where it came from."""
        for tensor in self._registered:
            torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
        self._registered = []
