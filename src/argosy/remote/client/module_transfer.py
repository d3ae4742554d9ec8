"""What a remote tensor does beyond torch's operations: its values come back, and it shows itself.

Also `argosy.place` and `argosy.fetch`, which move whole modules, optimizers and states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from argosy.errors import ConfigError
from argosy.remote.client.device_name import DeviceName
from argosy.remote.client.dispatch import RemoteTensor, scope, wrap
from argosy.remote.client.handle import Device
from argosy.torch_private import buffers_of, parameters_of

T = TypeVar("T")


class _Bring(torch.autograd.Function):
    """The values of a remote tensor, here; the gradient goes back to where they came from."""

    @staticmethod
    def forward(ctx: Any, tensor: RemoteTensor) -> torch.Tensor:
        ctx.device = tensor.handle.device
        return values_of(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return on_device(gradient, ctx.device)


class _Send(torch.autograd.Function):
    """A tensor on another device; the gradient goes back to where it came from."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        ctx.back = tensor.handle.device if isinstance(tensor, RemoteTensor) else None
        return on_device(tensor, device)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.back is not None:
            return on_device(gradient, ctx.back), None
        return values_of(gradient) if isinstance(gradient, RemoteTensor) else gradient, None


def values_of(tensor: RemoteTensor) -> torch.Tensor:
    """The values, without autograd."""
    return tensor.handle.device.client.fetch([tensor])[0]


def on_device(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """A tensor on a device, without autograd; itself if it is there already."""
    placer = device.client.placer
    if not isinstance(tensor, RemoteTensor):
        return wrap(placer.put(tensor, device))
    if tensor.handle.device is device:
        return wrap(tensor.handle)
    # Not the copy that is kept for operations: this one may be written to.
    return wrap(placer.copy(tensor.handle, device)).clone()


def _cpu(self: RemoteTensor, memory_format: Any = None) -> torch.Tensor:
    """The values as an ordinary tensor; waits for them."""
    if self.requires_grad and torch.is_grad_enabled():
        brought: torch.Tensor = _Bring.apply(self)  # type: ignore[no-untyped-call]
        return brought
    return values_of(self)


def _to(self: RemoteTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """As torch's; `to("cpu")` brings the values here, as `cpu()` does."""
    asked = args[0] if args and isinstance(args[0], str) else kwargs.get("device")
    tensor: torch.Tensor = self
    if isinstance(asked, str):
        if asked == "cpu":
            tensor = _cpu(self)
        else:
            from argosy.remote.client.device_scope import current_client

            found = current_client().device(DeviceName.parse(asked))
            tensor = _Send.apply(self, found)  # type: ignore[no-untyped-call]
        args = args[1:] if args and isinstance(args[0], str) else args
        kwargs = {name: each for name, each in kwargs.items() if name != "device"}
        if not args and not kwargs:
            return tensor
    return torch.Tensor.to(tensor, *args, **kwargs)


def _repr(self: RemoteTensor, *, tensor_contents: Any = None) -> str:
    """The values, and where they are."""
    text = repr(values_of(self))
    extra = f", device='{self.handle.device}'"
    if self.grad_fn is not None:
        extra += f", grad_fn=<{type(self.grad_fn).__name__}>"
    elif self.requires_grad:
        extra += ", requires_grad=True"
    return f"{text[:-1]}{extra})"


def _numpy(self: RemoteTensor, *, force: bool = False) -> Any:
    return self.detach().cpu().numpy() if force else self.cpu().numpy()


def _array(self: RemoteTensor, dtype: Any = None) -> Any:
    return self.cpu().__array__() if dtype is None else self.cpu().__array__(dtype)


def _tolist(self: RemoteTensor) -> Any:
    return values_of(self).tolist()


def _deepcopy(self: RemoteTensor, memo: dict[int, Any]) -> Any:
    if id(self) in memo:
        return memo[id(self)]
    if not self.is_leaf:
        raise RuntimeError("only tensors that the user made, not results of operations, can be deep-copied")
    copied: torch.Tensor = self.detach().clone()
    if isinstance(self, torch.nn.Parameter):
        copied = torch.nn.Parameter(copied, self.requires_grad)
    else:
        copied.requires_grad_(self.requires_grad)
    memo[id(self)] = copied
    if self.grad is not None:
        copied.grad = self.grad.__deepcopy__(memo)
    return copied


def _refuse_pickling(self: RemoteTensor, protocol: Any) -> Any:
    raise ConfigError(
        "state",
        "ordinary tensors",
        f"one on {self.handle.device}",
        "argosy.fetch() brings a whole state here",
    )


def _get_data(self: RemoteTensor) -> torch.Tensor:
    return self.detach()


def _set_data(self: RemoteTensor, other: torch.Tensor) -> None:
    if not isinstance(other, RemoteTensor):
        other = on_device(other, self.handle.device)
    assert isinstance(other, RemoteTensor)
    torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
    self.handle = other.handle


def _remote_device(self: RemoteTensor) -> str:
    """The device that the values are on, as `/job:worker/task:0/cpu:0`."""
    return self.handle.device.name


for _name, _method in {
    "cpu": _cpu,
    "to": _to,
    "__repr__": _repr,
    "numpy": _numpy,
    "__array__": _array,
    "tolist": _tolist,
    "__deepcopy__": _deepcopy,
    "__reduce_ex__": _refuse_pickling,
    "data": property(_get_data, _set_data),
    "remote_device": property(_remote_device),
}.items():
    setattr(RemoteTensor, _name, _method)


# --- whole modules and states -----------------------------------------------------------------------------
def place(what: T, device: str) -> T:
    """Move a tensor, a module or an optimizer's state to a device; modules and optimizers stay the same
    object.

    A tensor comes back as a tensor on that device, through which gradients flow. Parameters keep their
    identity, so an optimizer that holds them follows.
    """
    from argosy.remote.client.device_scope import current_client

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
        return _Send.apply(what, found)  # type: ignore[no-any-return,no-untyped-call]
    else:
        raise ConfigError("place", "a tensor, a module or an optimizer", type(what).__name__)
    return what


def _place_module(module: torch.nn.Module, device: Device) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        moved = torch.nn.Parameter(on_device(parameter.detach(), device), parameter.requires_grad)
        if parameter.grad is not None:
            moved.grad = on_device(parameter.grad, device)
        try:
            torch.utils.swap_tensors(parameter, moved)
        except RuntimeError:  # somebody has a weak reference to it: then it is another object
            parameters_of(module)[name] = moved
    for name, buffer in module.named_buffers(recurse=False):
        buffers_of(module)[name] = on_device(buffer, device)


def fetch(what: T) -> T:
    """The same with ordinary tensors in place of remote ones: of a tensor, or a list, tuple or mapping of
    them.
    """
    found: dict[int, RemoteTensor] = {}
    _collect(what, found)
    by_client: dict[Any, list[RemoteTensor]] = {}
    for tensor in found.values():
        by_client.setdefault(tensor.handle.device.client, []).append(tensor)
    values: dict[int, torch.Tensor] = {}
    for client, tensors in by_client.items():
        values.update(zip(map(id, tensors), client.fetch(tensors), strict=True))
    return _exchange(what, values)  # type: ignore[no-any-return]


def _collect(what: Any, found: dict[int, RemoteTensor]) -> None:
    if isinstance(what, RemoteTensor):
        found[id(what)] = what
    elif isinstance(what, Mapping):
        for each in what.values():
            _collect(each, found)
    elif isinstance(what, list | tuple):
        for each in what:
            _collect(each, found)


def _exchange(what: Any, values: dict[int, torch.Tensor]) -> Any:
    if isinstance(what, torch.Tensor):
        return values.get(id(what), what)
    if isinstance(what, Mapping):
        made = what.copy() if hasattr(what, "copy") else dict(what)  # an OrderedDict keeps its attributes
        made.update({name: _exchange(each, values) for name, each in what.items()})
        return made
    if isinstance(what, tuple) and hasattr(what, "_fields"):
        return type(what)(*(_exchange(each, values) for each in what))
    if isinstance(what, list | tuple):
        return type(what)(_exchange(each, values) for each in what)
    return what
