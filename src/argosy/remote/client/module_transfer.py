"""`argosy.place` and `argosy.fetch`: move tensors, whole modules, optimizers and states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from argosy.errors import ConfigError
from argosy.remote.client.active_scope import current_client, scope
from argosy.remote.client.device_name import DeviceName
from argosy.remote.client.dispatch import RemoteTensor, Send, on_device
from argosy.remote.client.handle import RemoteDevice
from argosy.remote.client.recording import tensors_in
from argosy.torch_private import buffers_of, parameters_of

T = TypeVar("T")


def place(what: T, device: str) -> T:
    """Move a tensor, a module or an optimizer's state to a device.

    Of a tensor, the result is a tensor on that device, through which gradients flow. A module or optimizer
    stays the same object, and so do parameters, so that an optimizer that holds them follows.
    """
    found = current_client().device(DeviceName.parse(device).within(scope.name or DeviceName()))
    if isinstance(what, torch.nn.Module):
        for module in what.modules():
            _place_module(module, found)
    elif isinstance(what, torch.optim.Optimizer):
        for state in what.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[name] = on_device(value, found)
    elif isinstance(what, torch.Tensor):
        return Send.apply(what, found)  # type: ignore[no-any-return,no-untyped-call]
    else:
        raise ConfigError("place", "a tensor, a module or an optimizer", type(what).__name__)
    return what


def _place_module(module: torch.nn.Module, device: RemoteDevice) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        moved = torch.nn.Parameter(on_device(parameter.detach(), device), parameter.requires_grad)
        if parameter.grad is not None:
            moved.grad = on_device(parameter.grad, device)
        try:
            torch.utils.swap_tensors(parameter, moved)
        except RuntimeError:  # it has a weak reference: replace the object
            parameters_of(module)[name] = moved
    for name, buffer in module.named_buffers(recurse=False):
        buffers_of(module)[name] = on_device(buffer, device)


def fetch(what: T) -> T:
    """A tensor, or a list, tuple or mapping of them, with ordinary tensors in place of remote ones."""
    found = {id(each): each for each in tensors_in(what) if isinstance(each, RemoteTensor)}
    by_client: dict[Any, list[RemoteTensor]] = {}
    for tensor in found.values():
        by_client.setdefault(tensor.handle.device.client, []).append(tensor)
    values: dict[int, torch.Tensor] = {}
    for client, tensors in by_client.items():
        values.update(zip(map(id, tensors), client.fetch(tensors), strict=True))
    return _replace_remote(what, values)  # type: ignore[no-any-return]


def _replace_remote(what: Any, values: dict[int, torch.Tensor]) -> Any:
    if isinstance(what, torch.Tensor):
        return values.get(id(what), what)
    if isinstance(what, Mapping):
        made = what.copy() if hasattr(what, "copy") else dict(what)  # an OrderedDict keeps its attributes
        made.update({name: _replace_remote(each, values) for name, each in what.items()})
        return made
    if isinstance(what, tuple) and hasattr(what, "_fields"):
        return type(what)(*(_replace_remote(each, values) for each in what))
    if isinstance(what, list | tuple):
        return type(what)(_replace_remote(each, values) for each in what)
    return what
