"""The results of an operation, inferred once for each signature: shapes, views, and what it writes to.

Shapes come from torch's meta kernels, which compute nothing. An operation whose results depend on values, or
that has no meta kernel, is probed: the task runs it and describes the results.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from argosy.remote.client.handle import RemoteDevice, TensorMeta, meta_of
from argosy.remote.operations.allowed import ALLOWED
from argosy.remote.operations.instructions import Result
from argosy.remote.operations.kernel import flatten
from argosy.remote.operations.mutation import argument_names, has_joint_results, mutated
from argosy.remote.transport.tensor_codec import dtype_name, dtype_of
from argosy.torch_private import (
    KERNEL_DEPENDENT,
    has_kernel,
    schema_of,
    set_conj,
    set_neg,
    storage_key,
    without_dispatch,
)

if TYPE_CHECKING:
    from argosy.remote.client.dispatch import OperationCall

aten = torch.ops.aten

# The results of these depend on values, and are not tensors.
_ALWAYS_PROBE = {aten.equal.default, aten.is_nonzero.default}
# The shapes of these depend on the kernels of the task, and the meta kernels do not know them: they are
# probed once for each signature.
_PROBE_ONCE = {
    *KERNEL_DEPENDENT,
    aten.native_batch_norm.default,
    aten.native_layer_norm.default,
    aten.native_group_norm.default,
    aten.mkldnn_rnn_layer.default,
}
# The shapes of these depend on floats among the arguments, which therefore belong to the signature.
_SHAPED_BY_FLOATS = (
    "arange",
    "range",
    "linspace",
    "logspace",
    "upsample",
    "grid",
    "fractional",
    "interpolate",
)
_ALIASES = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}


class Unsupported(RuntimeError):
    """An operation that remote devices do not support; the message names it."""


@dataclass(slots=True)
class InferredOutput:
    """One result of an operation."""

    meta: TensorMeta | None = None  # of a new tensor
    view_of: int = -1  # the input whose memory it shares
    offset: int = 0  # from the beginning of that input
    same_as: int = -1  # the input that it is
    constant: Any = None  # a result that is not a tensor

    @classmethod
    def read(cls, wire: Sequence[Any]) -> InferredOutput:
        """Read the description of a task."""
        if wire[0] == "v":
            return cls(constant=wire[1])
        _, dtype, shape, stride, offset, view_of, bits = wire
        meta = meta_of(tuple(shape), tuple(stride), dtype_of(dtype), (bits[0], bits[1]))
        return cls(meta, view_of, offset)


@dataclass(slots=True, eq=False)
class InferredOperation:
    """What is known of an operation with one signature."""

    func: Any
    inputs: int
    floats: int
    name: str
    grad: bool  # whether autograd records
    alias: bool
    joint: bool
    random: bool
    foreach: bool
    outputs: list[InferredOutput] = field(default_factory=list)
    shape: Any = None  # of the result: None for a single one, else nested sequences
    made: int = 0  # how many outputs are new values
    single: TensorMeta | None = None  # of the only output, if it is new and not a view: the common case
    mutates: tuple[int, ...] = ()
    stays: tuple[int, ...] = ()  # of `mutates`, those whose device decides where it runs
    reshapes: bool = False  # it changes the shape of a tensor that it writes to
    absolute: bool = False  # the offsets of its views count from the beginning of the storage
    is_view: bool = False
    whole: bool = False  # a view of all elements, in another shape
    decompose: bool = False
    probe: bool = False  # its results are unknown until it has run
    probe_once: bool = False  # they are the same at every call, so it is probed once
    templates: dict[RemoteDevice, int] = field(default_factory=dict)


def shapes_depend_on_floats(func: Any) -> bool:
    """Whether the shapes of an operation depend on floats among its arguments."""
    return any(word in func.name() for word in _SHAPED_BY_FLOATS)


def infer(call: OperationCall) -> InferredOperation:
    """Infer the results of a call that is the first with its signature."""
    func, args, kwargs, order = call.func, call.args, call.kwargs, call.tensors
    name = func.name()
    inferred = InferredOperation(
        func,
        len(order),
        len(call.floats),
        name,
        torch.is_grad_enabled(),
        alias=func in _ALIASES,
        joint=has_joint_results(func),
        random=torch.Tag.nondeterministic_seeded in func.tags,
        foreach=name.startswith(("aten::_foreach", "aten::_fused_a", "aten::_fused_s")),
    )
    if inferred.alias:
        return inferred
    if has_kernel(name, "CompositeImplicitAutograd") and not has_kernel(name, "CPU"):
        # Seen in inference mode only; otherwise torch has decomposed it before.
        inferred.decompose = True
        return inferred
    if name not in ALLOWED:
        raise Unsupported(
            f"{name} is not among the operations of PyTorch that remote devices run; "
            "bring its tensors here with cpu(), and place the results"
        )
    metas = {id(each): _meta_tensor(each.handle.meta) for each in order}
    inferred.mutates = _positions(order, mutated(func, args, kwargs, torch.is_tensor))
    inferred.stays = _positions(order, mutated(func, args, kwargs, torch.is_tensor, side_effects=False))
    if func in _ALWAYS_PROBE or func in _PROBE_ONCE:
        inferred.probe = True
        inferred.probe_once = func in _PROBE_ONCE
        return inferred
    if func is aten.as_strided.default:
        return _as_strided(inferred, args, order)
    try:
        # Operations on meta tensors are not part of a program that is being recorded.
        with warnings.catch_warnings(), without_dispatch():
            warnings.simplefilter("ignore")
            given = {name: each for name, each in kwargs.items() if name != "pin_memory"}
            returned = func(*_map(args, metas), **_map(given, metas))
    except Exception:
        if not schema_of(func).returns:  # it only writes, as fused optimizers do
            inferred.outputs = [InferredOutput()]
            return inferred
        # It depends on values, or the user made a mistake: the kernel of the task decides.
        inferred.probe = True
        return inferred
    returned = _asked_for(func, args, kwargs, returned)
    _note_outputs(inferred, returned, [metas[id(each)] for each in order])
    inferred.reshapes = any(
        metas[id(each)].shape != each.shape or metas[id(each)].stride() != each.stride()
        for each in (order[i] for i in inferred.mutates)
    )
    return inferred


def _asked_for(func: Any, args: Sequence[Any], kwargs: dict[str, Any], returned: Any) -> Any:
    """The gradients that the mask of a backward operation asks for; on meta tensors it may return all."""
    names = argument_names(func)
    if "output_mask" not in names:
        return returned
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return tuple(each if asked else None for each, asked in zip(returned, given["output_mask"], strict=True))


def _note_outputs(inferred: InferredOperation, returned: Any, inputs: Sequence[torch.Tensor]) -> None:
    flat = flatten(returned)
    inferred.outputs = [_output(inferred.name, each, inputs) for each in flat]
    inferred.shape = _shape_of(returned)
    new = [each for each in inferred.outputs if each.meta is not None]
    inferred.made = len(new)
    inferred.is_view = bool(new) and not inferred.mutates and all(each.view_of >= 0 for each in new)
    only = new[0].meta if inferred.shape is None and new else None
    if only is None or any(only.bits):
        return
    if new[0].view_of < 0 and not inferred.mutates:
        inferred.single = only
    inferred.whole = inferred.is_view and len(inputs) == 1 and only.nbytes == inputs[0].nbytes


def set_outputs(inferred: InferredOperation, outputs: list[InferredOutput]) -> None:
    """Use the description of a task for this signature from now on."""
    inferred.outputs = outputs
    inferred.made = sum(each.meta is not None for each in outputs)
    inferred.shape = None if len(outputs) == 1 else (tuple, [None] * len(outputs))
    inferred.probe = False
    inferred.templates = {}


def _output(name: str, value: Any, inputs: Sequence[torch.Tensor]) -> InferredOutput:
    if not isinstance(value, torch.Tensor):
        return InferredOutput(constant=value)
    for position, each in enumerate(inputs):
        if value is each:
            return InferredOutput(same_as=position)
    if value.layout is not torch.strided or value.is_quantized:
        raise Unsupported(f"{name}: remote devices do not support {value.layout} tensors of {value.dtype}")
    meta = meta_of(tuple(value.shape), value.stride(), value.dtype, (value.is_conj(), value.is_neg()))
    memory = storage_key(value.untyped_storage())
    for position, each in enumerate(inputs):
        if storage_key(each.untyped_storage()) == memory:
            return InferredOutput(meta, position, int(value.storage_offset()))
    return InferredOutput(meta)


def _as_strided(
    inferred: InferredOperation, args: Sequence[Any], tensors: Sequence[Any]
) -> InferredOperation:
    """Its offset counts from the beginning of the storage, which a meta tensor does not have."""
    size, stride, *offset = args[1:]
    meta = meta_of(tuple(size), tuple(stride), tensors[0].dtype, tensors[0].handle.meta.bits)
    inferred.absolute = bool(offset) and offset[0] is not None
    inferred.outputs = [InferredOutput(meta, 0, offset[0] if inferred.absolute else 0)]
    inferred.made = 1
    inferred.is_view = True
    return inferred


def _meta_tensor(meta: TensorMeta) -> torch.Tensor:
    tensor = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="meta")
    if meta.bits[0]:
        set_conj(tensor, True)
    if meta.bits[1]:
        set_neg(tensor, True)
    return tensor


def _map(value: Any, metas: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return metas[id(value)]
    if isinstance(value, list | tuple):
        return type(value)(_map(each, metas) for each in value)
    if isinstance(value, dict):
        return {name: _map(each, metas) for name, each in value.items()}
    if isinstance(value, torch.device):
        return torch.device("meta")
    return value


def _positions(tensors: Sequence[torch.Tensor], some: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """The positions of some of the tensors among all."""
    wanted = {id(each) for each in some}
    return tuple(position for position, each in enumerate(tensors) if id(each) in wanted)


def _shape_of(returned: Any) -> Any:
    """None for a single result; else the type of the sequence and the structure of its elements."""
    if not isinstance(returned, list | tuple):
        return None
    return (list if isinstance(returned, list) else tuple, [_shape_of(each) for each in returned])


def results_of(inferred: InferredOperation) -> tuple[tuple[int, ...], tuple[Result, ...]]:
    """The outputs that are new values, and their description in a template."""
    picks, results = [], []
    for position, output in enumerate(inferred.outputs):
        if (meta := output.meta) is not None:
            picks.append(position)
            results.append(Result(meta.shape, meta.stride, dtype_name(meta.dtype), output.view_of))
    return tuple(picks), tuple(results)
