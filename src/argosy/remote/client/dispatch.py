"""Every operation on a remote tensor, and every one inside a `device` scope, comes through `dispatch`.

Called by torch below autograd, tens of thousands of times a second: the common case is short, and what
happens once for a signature is kept in a recipe. Nothing here waits, except for operations that only running
can tell of.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from argosy.remote.client import call_sites as sites
from argosy.remote.client.device_name import DeviceName
from argosy.remote.client.handle import Device, Handle, Memory, meta_of
from argosy.remote.client.outbox import LARGE
from argosy.remote.client.shape_inference import Output, Recipe, Unsupported, floats_matter, infer, learn
from argosy.remote.client.transfer import Placer
from argosy.torch_private import (
    LOCAL_SCALAR,
    current_node,
    make_wrapper,
    next_sequence_number,
    no_torch_function,
    schema_of,
    sequence_number,
    set_conj,
    set_neg,
    without_dispatch,
)

if TYPE_CHECKING:
    from argosy.remote.client.cluster_client import Client

_TRUE, _FALSE = object(), object()
_CPU = torch.device("cpu")
# Of so many forward operations it is remembered where they ran; few graphs have more.
_FORWARD = 20_000
is_grad_enabled = torch.is_grad_enabled
_SCALARS = LOCAL_SCALAR, torch.ops.aten.item.default


class _Scope(threading.local):
    """The device that the innermost `argosy.device` of this thread names."""

    device: Device | None = None
    name: DeviceName | None = None
    watched: bool = False  # whether operations without remote tensors are seen too
    # Forward operations that did not simply run where their inputs were: autograd's number, and the device.
    forward: dict[int, Device] | None = None


scope = _Scope()


class RemoteTensor(torch.Tensor):
    """A tensor on a device of the cluster. It has a shape and a dtype here; its values come when asked
    for.
    """

    handle: Handle
    __torch_function__ = no_torch_function

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See the module."""
        return dispatch(func, args, kwargs)

    def tensor_split(self, indices_or_sections: Any, dim: int = 0) -> Any:
        """As torch's, by numbers."""
        if isinstance(indices_or_sections, RemoteTensor):
            raise Unsupported(
                "tensor_split: torch reads the indices itself; give it a list, not a remote tensor"
            )
        return super().tensor_split(indices_or_sections, dim)


def wrap(handle: Handle) -> RemoteTensor:
    """A tensor for a handle."""
    meta = handle.meta
    tensor: RemoteTensor = make_wrapper(
        RemoteTensor,
        meta.shape,
        strides=meta.stride,
        storage_offset=handle.offset,
        dtype=meta.dtype,
        device=_CPU,
    )
    if meta.bits[0]:
        set_conj(tensor, True)
    if meta.bits[1]:
        set_neg(tensor, True)
    tensor.handle = handle
    return tensor


class _Signature:
    """The arguments of a call, looked through: what belongs to its signature, and what varies."""

    __slots__ = ("floats", "func", "generator", "key", "ordinary", "tensors")

    def __init__(self, func: Any) -> None:
        self.func = func
        # Some kernels do more when autograd records.
        self.key: list[Any] = [id(func) if is_grad_enabled() else -id(func)]
        self.tensors: list[RemoteTensor] = []
        self.floats: list[float] = []
        self.ordinary = False
        self.generator = False

    def add(self, value: Any) -> None:
        kind = type(value)
        if kind is RemoteTensor:
            self.key.append(value.handle.meta)
            self.tensors.append(value)
        elif value is None or kind is int:
            self.key.append(value)
        elif kind is float:
            if floats_matter(self.func):
                self.key.append((float, value))
            else:
                self.key.append(float)
                self.floats.append(value)
        elif kind is bool:
            self.key.append(_TRUE if value else _FALSE)
        elif kind is list or kind is tuple:
            self._add_sequence(value)
        elif isinstance(value, torch.Tensor):
            self.ordinary = True
        elif kind is torch.Generator:
            self.generator = True
        elif kind is complex:
            self.key.append((complex, value))
        else:
            self.key.append(value)

    def _add_sequence(self, values: Sequence[Any]) -> None:
        self.key.append(len(values))
        for each in values:
            if each is None or isinstance(each, torch.Tensor):
                self.add(each)
            else:
                self.key.append((type(each), each))


def dispatch(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
    """Run an operation on the device where it belongs."""
    signature = _Signature(func)
    for each in args:
        signature.add(each)
    if kwargs:
        for name, each in kwargs.items():
            if name != "device" and name != "pin_memory":
                signature.key.append(name)
                signature.add(each)
    if signature.ordinary or signature.generator or not signature.tensors:
        return _uncommon(func, args, kwargs or {}, signature)
    tensors = signature.tensors
    device = tensors[0].handle.device
    client = device.client
    key = tuple(signature.key)
    recipe = client.recipes.get(key)
    if recipe is None:
        if func in _SCALARS:
            return client.fetch([tensors[0]])[0].item()
        recipe = infer(func, args, kwargs or {}, tensors, len(signature.floats))
        client.keep_recipe(key, recipe)
    together = True
    for each in tensors:
        if each.handle.device is not device:
            together = False
            break
    wanted = scope.device
    if not together or wanted is not None or scope.forward:
        chosen = _choose(recipe, tensors, device, together, wanted)
        if is_grad_enabled() and any(each.requires_grad for each in tensors):
            _remember(chosen)
        if recipe.foreach and not together:
            return client.placer.split(func, args, kwargs or {})
        if not together or chosen is not device:
            if recipe.alias:
                return wrap(tensors[0].handle)
            return client.placer.run_at(func, args, kwargs or {}, chosen, bool(recipe.mutates))
    return _issue(client, device, recipe, tensors, signature.floats, args, kwargs)


def _dispatch_at(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None, device: Device) -> Any:
    """The same with all tensors on one device, where it runs whatever the scope says."""
    before, scope.device = scope.device, None
    forward, scope.forward = scope.forward, None
    try:
        return dispatch(func, args, kwargs)
    finally:
        scope.device = before
        scope.forward = forward


def _issue(
    client: Client,
    device: Device,
    recipe: Recipe,
    tensors: Sequence[RemoteTensor],
    floats: Sequence[float],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None,
) -> Any:
    """Write the record, and make what the operation returns."""
    if recipe.alias:
        return wrap(tensors[0].handle)
    if recipe.decompose:
        return recipe.func.decompose(*args, **(kwargs or {}))
    if recipe.probe:
        return _probe(client, device, recipe, tensors, floats, args, kwargs)
    if recipe.learn and not recipe.made:
        return _returned(recipe, device, tensors, 0)
    if recipe.random:
        client.keep_seeds(device)
    template = recipe.templates.get(device)
    if template is None:
        template = client.define(recipe, device, args, kwargs or {})
    if (observer := client.observer) is not None:
        observer.note(recipe, tensors, device)
    post, link = device.post, client.link
    site = sites.here()
    numbers = [each.handle.number for each in tensors]
    with client.lock:
        first = client.number
        client.number = first + recipe.made
        post.batch.extend((template, site, first, *numbers, *floats))
        if len(post.batch) > LARGE:
            post.flush()
    if link.asleep:
        link.rouse()
    if post.lost:
        post.check()
    if (meta := recipe.first) is not None:
        tensor = make_wrapper(RemoteTensor, meta.shape, strides=meta.stride, dtype=meta.dtype, device=_CPU)
        tensor.handle = Handle(first, meta, device, Memory())
        if observer is not None:
            observer.note_made(tensor)
        return tensor
    for position in recipe.mutates:
        tensors[position].handle.memory.version += 1
    if recipe.reshapes:
        _reshape(recipe, tensors, args, kwargs)
    returned = _returned(recipe, device, tensors, first)
    if recipe.whole:
        returned.handle.origin = (tensors[0].handle, recipe.func, args[1:], kwargs or {})
    if observer is not None:
        observer.note_made(returned)
    return returned


def _returned(recipe: Recipe, device: Device, tensors: Sequence[RemoteTensor], first: int) -> Any:
    made: list[Any] = []
    joint = Memory() if recipe.joint else None
    for output in recipe.outputs:
        if output.meta is None:
            made.append(tensors[output.same_as] if output.same_as >= 0 else output.constant)
        else:
            made.append(_new(output, device, tensors, first, recipe.absolute, joint))
            first += 1
    return made[0] if recipe.shape is None else _assemble(recipe.shape, iter(made))


def _new(
    output: Output,
    device: Device,
    tensors: Sequence[RemoteTensor],
    number: int,
    absolute: bool,
    joint: Memory | None,
) -> RemoteTensor:
    meta = output.meta
    assert meta is not None
    if output.view_of < 0:
        return wrap(Handle(number, meta, device, joint or Memory()))
    base = tensors[output.view_of].handle
    offset = output.offset if absolute else base.offset + output.offset
    return wrap(Handle(number, meta, device, base.memory, offset))


def _assemble(shape: Any, made: Any) -> Any:
    if shape is None:
        return next(made)
    kind, parts = shape
    return kind(_assemble(each, made) for each in parts)


def _reshape(
    recipe: Recipe, tensors: Sequence[RemoteTensor], args: Sequence[Any], kwargs: dict[str, Any] | None
) -> None:
    """An operation such as `t_` changes the shape of a tensor that is there: this end of it must follow."""
    if torch.Tag.inplace_view not in recipe.func.tags:
        raise Unsupported(f"{recipe.name}: a remote tensor cannot be given another size in place")
    with without_dispatch():
        recipe.func(*args, **(kwargs or {}))
    tensor, bits = tensors[0], tensors[0].handle.meta.bits
    tensor.handle.meta = meta_of(tuple(tensor.shape), tensor.stride(), tensor.dtype, bits)
    tensor.handle.offset = int(tensor.storage_offset())


# --- where an operation runs ------------------------------------------------------------------------------
def _choose(
    recipe: Recipe, tensors: Sequence[RemoteTensor], first: Device, together: bool, wanted: Device | None
) -> Device:
    """What is written to stays where it is, and so do views; else the scope decides, else the bytes."""
    if recipe.stays:
        return tensors[recipe.stays[0]].handle.device
    if recipe.is_view or recipe.alias:
        return first
    node = current_node() if wanted is not None or scope.forward else None
    if node is not None:
        # A gradient runs on the device of its forward operation, wherever backward() was called.
        wanted = (scope.forward or {}).get(sequence_number(node))
    if wanted is not None:
        return wanted
    return first if together else Placer.heaviest(tensors)


def _remember(chosen: Device) -> None:
    """For the gradient of this operation, which autograd has just given a number."""
    forward = scope.forward
    if forward is None:
        forward = scope.forward = {}
    if len(forward) > _FORWARD:  # those of long ago have had their backward pass
        for number in list(forward)[: _FORWARD // 2]:
            del forward[number]
    forward.setdefault(next_sequence_number() - 1, chosen)


# --- what happens seldom ----------------------------------------------------------------------------------
def _uncommon(func: Any, args: Sequence[Any], kwargs: dict[str, Any], signature: _Signature) -> Any:
    """Ordinary tensors among the arguments, a generator, or no tensors at all."""
    wanted = scope.device
    node = current_node() if wanted is not None else None
    if node is not None:
        wanted = (scope.forward or {}).get(sequence_number(node), wanted if signature.tensors else None)
    remote = signature.tensors[0].handle.device if signature.tensors else wanted
    if remote is None:
        return func(*args, **kwargs)
    return remote.client.placer.uncommon(func, args, kwargs, signature, wanted)


def _probe(
    client: Client,
    device: Device,
    recipe: Recipe,
    tensors: Sequence[RemoteTensor],
    floats: Sequence[float],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None,
) -> Any:
    """Let the task run it, and wait for what it tells of the results."""
    if recipe.random:
        client.keep_seeds(device)
    for position in recipe.mutates:
        tensors[position].handle.memory.version += 1
    outputs, first = client.probe(recipe, device, tensors, floats, args, kwargs or {})
    if recipe.learn:
        learn(recipe, outputs)
    made: list[Any] = []
    joint = Memory() if recipe.joint else None
    for number, output in enumerate(outputs):
        if output.same_as >= 0:
            made.append(tensors[output.same_as])
        elif output.meta is None:
            made.append(output.constant)
        else:
            made.append(_new(output, device, tensors, first + number, True, joint))
    returns = schema_of(recipe.func).returns
    if len(returns) == 1 and not str(returns[0].type).startswith("List"):
        return made[0]
    return made if len(returns) == 1 else tuple(made)
