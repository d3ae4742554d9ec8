"""Remote tensors, and `dispatch`, through which every operation on one goes, and every one in a `device`
scope.

torch calls it below autograd, tens of thousands of times a second. So the common case is short, and what is
the same for every call of a signature is inferred once. Only operations whose results depend on values wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from argosy.errors import ConfigError
from argosy.remote.client import call_sites
from argosy.remote.client.active_scope import current_client, scope
from argosy.remote.client.device_name import DeviceName
from argosy.remote.client.handle import Handle, RemoteDevice, RemoteStorage, device_with_most_bytes, meta_of
from argosy.remote.client.outbox import FULL
from argosy.remote.client.shape_inference import (
    InferredOperation,
    InferredOutput,
    Unsupported,
    infer,
    set_outputs,
    shapes_depend_on_floats,
)
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

_TRUE, _FALSE = object(), object()
_CPU = torch.device("cpu")
# The devices of this many forward operations are remembered; few autograd graphs have more.
_FORWARD = 20_000
is_grad_enabled = torch.is_grad_enabled
_SCALARS = LOCAL_SCALAR, torch.ops.aten.item.default


class RemoteTensor(torch.Tensor):
    """A tensor on a device of the cluster. Its shape and dtype are known here; its values are fetched."""

    handle: Handle
    __torch_function__ = no_torch_function

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See the module."""
        return dispatch(func, args, kwargs)

    @property
    def remote_device(self) -> str:
        """The device of the values, such as `/job:worker/task:0/cpu:0`."""
        return self.handle.device.name

    def cpu(self, memory_format: Any = None) -> torch.Tensor:
        """The values as an ordinary tensor; waits for them."""
        if self.requires_grad and torch.is_grad_enabled():
            fetched: torch.Tensor = _Fetch.apply(self)  # type: ignore[no-untyped-call]
            return fetched
        return values_of(self)

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As torch's; `to("cpu")` fetches the values, as `cpu()` does."""
        asked = args[0] if args and isinstance(args[0], str) else kwargs.get("device")
        tensor: torch.Tensor = self
        if isinstance(asked, str):
            if asked == "cpu":
                tensor = self.cpu()
            else:
                found = current_client().device(DeviceName.parse(asked))
                tensor = Send.apply(self, found)  # type: ignore[no-untyped-call]
            args = args[1:] if args and isinstance(args[0], str) else args
            kwargs = {name: each for name, each in kwargs.items() if name != "device"}
            if not args and not kwargs:
                return tensor
        return torch.Tensor.to(tensor, *args, **kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """The values, and their device."""
        text = repr(values_of(self))
        extra = f", device='{self.handle.device}'"
        if self.grad_fn is not None:
            extra += f", grad_fn=<{type(self.grad_fn).__name__}>"
        elif self.requires_grad:
            extra += ", requires_grad=True"
        return f"{text[:-1]}{extra})"

    def numpy(self, *, force: bool = False) -> Any:
        """As torch's; waits for the values."""
        return self.detach().cpu().numpy() if force else self.cpu().numpy()

    def __array__(self, dtype: Any = None) -> Any:
        return self.cpu().__array__() if dtype is None else self.cpu().__array__(dtype)

    def tolist(self) -> Any:
        """As torch's; waits for the values."""
        return values_of(self).tolist()

    def tensor_split(self, indices_or_sections: Any, dim: int = 0) -> Any:
        """As torch's, by numbers."""
        if isinstance(indices_or_sections, RemoteTensor):
            raise Unsupported("tensor_split: give the indices as a list, not as a remote tensor")
        return super().tensor_split(indices_or_sections, dim)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "only tensors that the user made, not results of operations, can be deep-copied"
            )
        copied: torch.Tensor = self.detach().clone()
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        else:
            copied.requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise ConfigError(
            "state",
            "ordinary tensors",
            f"one on {self.handle.device}",
            "call argosy.fetch() first: it fetches a whole state",
        )

    @property
    def data(self) -> torch.Tensor:
        """As torch's: the same values, without autograd."""
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        if not isinstance(other, RemoteTensor):
            other = on_device(other, self.handle.device)
        assert isinstance(other, RemoteTensor)
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        self.handle = other.handle


def wrap(handle: Handle) -> RemoteTensor:
    """The tensor of a handle."""
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


class _Fetch(torch.autograd.Function):
    """The values of a remote tensor as a local tensor; the gradient goes back to its device."""

    @staticmethod
    def forward(ctx: Any, tensor: RemoteTensor) -> torch.Tensor:
        ctx.device = tensor.handle.device
        return values_of(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return on_device(gradient, ctx.device)


class Send(torch.autograd.Function):
    """A tensor on another device; the gradient goes back to where the tensor was."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: RemoteDevice) -> torch.Tensor:
        ctx.back = tensor.handle.device if isinstance(tensor, RemoteTensor) else None
        return on_device(tensor, device)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.back is not None:
            return on_device(gradient, ctx.back), None
        return values_of(gradient) if isinstance(gradient, RemoteTensor) else gradient, None


def values_of(tensor: RemoteTensor) -> torch.Tensor:
    """The values of a tensor, without autograd."""
    return tensor.handle.device.client.fetch([tensor])[0]


def on_device(tensor: torch.Tensor, device: RemoteDevice) -> torch.Tensor:
    """A tensor on a device, without autograd; the same value if it is there already."""
    transfer = device.client.transfer
    if not isinstance(tensor, RemoteTensor):
        return wrap(transfer.put(tensor, device))
    if tensor.handle.device is device:
        return wrap(tensor.handle)
    # A copy of its own: the one that is kept for operations must not be written to.
    return wrap(transfer.copy(tensor.handle, device)).clone()


class OperationCall:
    """A call of an operation. `key` is its signature; tensors and floats vary from call to call."""

    __slots__ = ("args", "floats", "func", "generator", "key", "kwargs", "ordinary", "tensors")

    def __init__(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs or {}
        # Some kernels save more while autograd records.
        self.key: list[Any] = [id(func) if is_grad_enabled() else -id(func)]
        self.tensors: list[RemoteTensor] = []
        self.floats: list[float] = []
        self.ordinary = False
        self.generator = False
        for each in args:
            self._add(each)
        if kwargs:
            for name, each in kwargs.items():
                if name != "device" and name != "pin_memory":
                    self.key.append(name)
                    self._add(each)

    def _add(self, value: Any) -> None:
        kind = type(value)
        if kind is RemoteTensor:
            self.key.append(value.handle.meta)
            self.tensors.append(value)
        elif value is None or kind is int:
            self.key.append(value)
        elif kind is float:
            if shapes_depend_on_floats(self.func):
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
                self._add(each)
            else:
                self.key.append((type(each), each))


def dispatch(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
    """Run an operation on its device."""
    call = OperationCall(func, args, kwargs)
    tensors = call.tensors
    if call.ordinary or call.generator or not tensors:
        return _uncommon(call)
    device = tensors[0].handle.device
    client = device.client
    key = tuple(call.key)
    inferred = client.inferred.get(key)
    if inferred is None:
        if func in _SCALARS:
            return client.fetch([tensors[0]])[0].item()
        inferred = infer(call)
        client.keep_inferred(key, inferred)
    together = True
    for each in tensors:
        if each.handle.device is not device:
            together = False
            break
    wanted = scope.device
    if not together or wanted is not None or scope.forward:
        chosen = _choose(inferred, tensors, device, together, wanted)
        if is_grad_enabled() and any(each.requires_grad for each in tensors):
            _remember(chosen)
        if inferred.foreach and not together:
            return client.transfer.split(call)
        if not together or chosen is not device:
            if inferred.alias:
                return wrap(tensors[0].handle)
            return client.transfer.run_at(func, args, call.kwargs, chosen, bool(inferred.mutates))
    return issue(call, device, inferred)


def dispatch_in_place(func: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
    """As `dispatch`, with all tensors on one device, which is used whatever the scope says."""
    before, scope.device = scope.device, None
    forward, scope.forward = scope.forward, None
    try:
        return dispatch(func, args, kwargs)
    finally:
        scope.device = before
        scope.forward = forward


def issue(call: OperationCall, device: RemoteDevice, inferred: InferredOperation) -> Any:
    """Add the instruction to the batch, and return the tensors that the operation returns."""
    client, tensors = device.client, call.tensors
    if inferred.alias:
        return wrap(tensors[0].handle)
    if inferred.decompose:
        return inferred.func.decompose(*call.args, **call.kwargs)
    if inferred.probe:
        return _probe(call, device, inferred)
    if inferred.probe_once and not inferred.made:
        return _returned(inferred, device, tensors, 0)
    if inferred.random:
        client.keep_seeds(device)
    template = inferred.templates.get(device)
    if template is None:
        template = client.define(call, device, inferred)
    if (observer := client.observer) is not None:
        observer.note(inferred, tensors, device)
    outbox, connections = device.outbox, client.connections
    site = call_sites.here()
    numbers = [each.handle.number for each in tensors]
    with client.lock:
        first = client.number
        client.number = first + inferred.made
        outbox.batch.extend((template, site, first, *numbers, *call.floats))
        if len(outbox.batch) > FULL:
            outbox.flush()
    if connections.asleep:
        connections.wake()
    if outbox.lost:
        outbox.check()
    if (meta := inferred.single) is not None:
        tensor = make_wrapper(RemoteTensor, meta.shape, strides=meta.stride, dtype=meta.dtype, device=_CPU)
        tensor.handle = Handle(first, meta, device, RemoteStorage())
        if observer is not None:
            observer.note_made(tensor)
        return tensor
    for position in inferred.mutates:
        tensors[position].handle.storage.version += 1
    if inferred.reshapes:
        _reshape(call, inferred)
    returned = _returned(inferred, device, tensors, first)
    if inferred.whole:
        returned.handle.origin = (tensors[0].handle, inferred.func, call.args[1:], call.kwargs)
    if observer is not None:
        observer.note_made(returned)
    return returned


def _returned(
    inferred: InferredOperation, device: RemoteDevice, tensors: Sequence[RemoteTensor], first: int
) -> Any:
    made: list[Any] = []
    joint = RemoteStorage() if inferred.joint else None
    for output in inferred.outputs:
        if output.meta is None:
            made.append(tensors[output.same_as] if output.same_as >= 0 else output.constant)
        else:
            made.append(_new(output, device, tensors, first, inferred.absolute, joint))
            first += 1
    return made[0] if inferred.shape is None else _assemble(inferred.shape, iter(made))


def _new(
    output: InferredOutput,
    device: RemoteDevice,
    tensors: Sequence[RemoteTensor],
    number: int,
    absolute: bool,
    joint: RemoteStorage | None,
) -> RemoteTensor:
    meta = output.meta
    assert meta is not None
    if output.view_of < 0:
        return wrap(Handle(number, meta, device, joint or RemoteStorage()))
    base = tensors[output.view_of].handle
    offset = output.offset if absolute else base.offset + output.offset
    return wrap(Handle(number, meta, device, base.storage, offset))


def _assemble(shape: Any, made: Any) -> Any:
    if shape is None:
        return next(made)
    kind, parts = shape
    return kind(_assemble(each, made) for each in parts)


def _reshape(call: OperationCall, inferred: InferredOperation) -> None:
    """An operation such as `t_` changes the shape of its tensor, so the tensor here changes too."""
    if torch.Tag.inplace_view not in inferred.func.tags:
        raise Unsupported(f"{inferred.name}: a remote tensor cannot be resized in place")
    with without_dispatch():
        inferred.func(*call.args, **call.kwargs)
    tensor = call.tensors[0]
    tensor.handle.meta = meta_of(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.handle.meta.bits)
    tensor.handle.offset = int(tensor.storage_offset())


# --- where an operation runs ------------------------------------------------------------------------------
def _choose(
    inferred: InferredOperation,
    tensors: Sequence[RemoteTensor],
    first: RemoteDevice,
    together: bool,
    wanted: RemoteDevice | None,
) -> RemoteDevice:
    """Where an operation runs: on the device of what it writes or views, else of the scope, else of most
    bytes.
    """
    if inferred.stays:
        return tensors[inferred.stays[0]].handle.device
    if inferred.is_view or inferred.alias:
        return first
    node = current_node() if wanted is not None or scope.forward else None
    if node is not None:
        # A gradient runs on the device of its forward operation, wherever backward() is called.
        wanted = (scope.forward or {}).get(sequence_number(node))
    if wanted is not None:
        return wanted
    return first if together else device_with_most_bytes(tensors)


def _remember(chosen: RemoteDevice) -> None:
    """Remember the device for the gradient of this operation, by the number that autograd has just given."""
    forward = scope.forward
    if forward is None:
        forward = scope.forward = {}
    if len(forward) > _FORWARD:  # the oldest have had their backward pass
        for number in list(forward)[: _FORWARD // 2]:
            del forward[number]
    forward.setdefault(next_sequence_number() - 1, chosen)


# --- uncommon calls ---------------------------------------------------------------------------------------
def _uncommon(call: OperationCall) -> Any:
    """There are local tensors or a generator among the arguments, or no tensors."""
    wanted = scope.device
    node = current_node() if wanted is not None else None
    if node is not None:
        wanted = (scope.forward or {}).get(sequence_number(node), wanted if call.tensors else None)
    remote = call.tensors[0].handle.device if call.tensors else wanted
    if remote is None:
        return call.func(*call.args, **call.kwargs)
    return remote.client.transfer.uncommon(call, wanted)


def _probe(call: OperationCall, device: RemoteDevice, inferred: InferredOperation) -> Any:
    """Let the task run it, and wait for the description of its results."""
    if inferred.random:
        device.client.keep_seeds(device)
    for position in inferred.mutates:
        call.tensors[position].handle.storage.version += 1
    outputs, first = device.client.probe(call, device, inferred)
    if inferred.probe_once:
        set_outputs(inferred, outputs)
    joint = RemoteStorage() if inferred.joint else None
    made = [
        each.constant if each.meta is None else _new(each, device, call.tensors, first + number, True, joint)
        for number, each in enumerate(outputs)
    ]
    returns = schema_of(inferred.func).returns
    if len(returns) == 1 and not str(returns[0].type).startswith("List"):
        return made[0]
    return made if len(returns) == 1 else tuple(made)
