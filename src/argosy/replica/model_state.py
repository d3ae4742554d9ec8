"""What a model has beside the parameters that are trained: buffers, and parameters outside the optimizer.

All of it starts as the chief's. Afterwards only what differs from the servers' values travels, so a table of
constants is sent once and never again. Compared by value: torch counts the in-place changes of a tensor, but
batch normalisation writes its statistics without counting.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import torch
from torch import nn

from argosy.errors import ConfigError
from argosy.protocol.frames import MAX_FRAME_BYTES
from argosy.torch_private import buffers_of
from argosy.wire.tensor_bytes import dtype_name


def buffer_places(model: nn.Module | None) -> dict[str, tuple[nn.Module, str]]:
    """The buffers of a model's state by their full names: the module of each, and its name there."""
    if model is None:
        return {}
    saved = model.state_dict().keys()
    names = {
        f"{prefix}.{name}" if prefix else name: (module, name)
        for prefix, module in model.named_modules()
        for name, _ in module.named_buffers(recurse=False, remove_duplicate=False)
    }
    return {full: place for full, place in names.items() if full in saved}


class ModelState:
    """The buffers of a model, and which of them have changed."""

    def __init__(self, model: nn.Module | None, trained: Iterable[nn.Parameter]) -> None:
        self._constants: dict[str, torch.Tensor] = {}
        self._places: dict[str, tuple[nn.Module, str]] = {}
        self._seen: dict[str, torch.Tensor] = {}  # the servers' values
        if model is None:
            return
        known = {id(parameter) for parameter in trained}
        self._constants = {n: p.detach() for n, p in model.named_parameters() if id(p) not in known}
        self._places = buffer_places(model)
        for full, value in self._everything():
            dtype_name(value.dtype, full)
            if value.numel() * value.element_size() > MAX_FRAME_BYTES:
                raise ConfigError(f"buffer {full}", f"at most {MAX_FRAME_BYTES} bytes", value.numel())
        self._seen = {full: self._buffer(full).detach().clone() for full in self._places}

    def _everything(self) -> Iterable[tuple[str, torch.Tensor]]:
        yield from self._constants.items()
        for full in self._places:
            yield full, self._buffer(full)

    def _buffer(self, full: str) -> torch.Tensor:
        module, name = self._places[full]
        buffer = buffers_of(module)[name]
        if buffer is None:
            raise ConfigError(f"buffer {full}", "the tensor that was there at the start", "None")
        return buffer

    def everything(self) -> dict[str, torch.Tensor]:
        """All of it, on the CPU: what the chief registers."""
        return {full: _portable(value) for full, value in self._everything()}

    def changed(self) -> dict[str, torch.Tensor]:
        """The buffers that are not as the servers have them."""
        changed = {}
        for full, seen in self._seen.items():
            buffer = self._buffer(full)
            if buffer.dtype != seen.dtype or not torch.equal(buffer, seen):
                changed[full] = _portable(buffer)
        return changed

    @torch.no_grad()
    def put_back(self, taken: Container[str] = ()) -> None:
        """What this worker has changed and does not bring is the servers' again, unless just `taken`."""
        for full, seen in self._seen.items():
            if full not in taken and not torch.equal(buffer := self._buffer(full), seen):
                buffer.copy_(seen)

    @torch.no_grad()
    def take(self, values: Mapping[str, torch.Tensor]) -> None:
        """Set these to what the servers say."""
        for full, value in values.items():
            if full in self._places:
                self._seen[full] = self._buffer(full).copy_(value).clone()
            elif full in self._constants:
                self._constants[full].copy_(value)


def _portable(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous()
