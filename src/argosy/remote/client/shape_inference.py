"""What comes of an operation, found out once for each signature: shapes, views, what it writes to.

Shapes come from torch's meta kernels, which compute nothing. An operation whose result depends on values, or
that has no such kernel, gets a inferred that says so: then the task runs it and tells.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from argosy.remote.client.handle import RemoteDevice, TensorMeta, meta_of
from argosy.remote.operations.allowed import ALLOWED
from argosy.remote.operations.instructions import Result
from argosy.remote.operations.kernel import flatten
from argosy.remote.operations.mutation import has_joint_results, mutated
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

aten = torch.ops.aten

# What these return depends on values, and is no tensor.
_ASK_THE_TASK = {aten.equal.default, aten.is_nonzero.default}
# What these return depends on the kernels that the task has, and the meta kernels do not know it: the task
# is asked the first time, and for every signature only then.
_LEARN = {
    *KERNEL_DEPENDENT,
    aten.native_batch_norm.default,
    aten.native_layer_norm.default,
    aten.native_group_norm.default,
    aten.mkldnn_rnn_layer.default,
}
# Shapes that depend on the floats among the arguments: here they belong to the signature.
_FLOATS_MATTER = ("arange", "range", "linspace", "logspace", "upsample", "grid", "fractional", "interpolate")
_ALIASES = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}


class Unsupported(RuntimeError):
    """An operation that remote devices do not know; its name is in the message."""


class InferredOutput:
    """One of the things that an operation returns."""

    __slots__ = ("constant", "meta", "offset", "same_as", "view_of")

    def __init__(
        self,
        meta: TensorMeta | None = None,
        view_of: int = -1,
        offset: int = 0,
        same_as: int = -1,
        constant: Any = None,
    ) -> None:
        self.meta = meta  # of a new tensor
        self.view_of = view_of  # the input whose memory it shares
        self.offset = offset  # into that, from where the input begins
        self.same_as = same_as  # the input that it is
        self.constant = constant  # what is no tensor

    @classmethod
    def read(cls, wire: Sequence[Any]) -> InferredOutput:
        """As a task has told of it."""
        if wire[0] == "v":
            return cls(constant=wire[1])
        _, dtype, shape, stride, offset, view_of, bits = wire
        meta = meta_of(tuple(shape), tuple(stride), dtype_of(dtype), (bits[0], bits[1]))
        return cls(meta, view_of, offset)


class InferredOperation:
    """What an operation of one signature does."""

    __slots__ = (
        "absolute",
        "alias",
        "decompose",
        "first",
        "floats",
        "foreach",
        "func",
        "grad",
        "inputs",
        "is_view",
        "joint",
        "learn",
        "made",
        "mutates",
        "name",
        "outputs",
        "probe",
        "random",
        "reshapes",
        "shape",
        "stays",
        "templates",
        "whole",
    )

    def __init__(self, func: Any) -> None:
        self.func = func
        self.name = func.name()
        self.grad = torch.is_grad_enabled()
        self.inputs = 0
        self.floats = 0
        self.outputs: list[InferredOutput] = []
        self.shape: Any = None  # of what is returned: None for one thing, else a nested list of positions
        self.made = 0  # how many outputs are new values
        self.first: TensorMeta | None = (
            None  # of the only output, if it is new and not a view: the common case
        )
        self.mutates: tuple[int, ...] = ()
        self.stays: tuple[int, ...] = ()  # those that it runs with, where they are; others are written back
        self.joint = has_joint_results(func)
        self.reshapes = False  # it changes the shape of what it writes to
        self.absolute = False  # offsets of its views count from the beginning of the memory
        self.is_view = False
        self.whole = False  # a view of all that there is, in another shape
        self.alias = func in _ALIASES
        self.decompose = False
        self.probe = False  # only running it tells what comes of it
        self.learn = False  # … but then it is always the same
        self.foreach = self.name.startswith(("aten::_foreach", "aten::_fused_a", "aten::_fused_s"))
        self.random = torch.Tag.nondeterministic_seeded in func.tags
        self.templates: dict[RemoteDevice, int] = {}


def floats_matter(func: Any) -> bool:
    """Whether floats among the arguments of an operation decide on shapes."""
    return any(word in func.name() for word in _FLOATS_MATTER)


def infer(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[Any], floats: int
) -> InferredOperation:
    """The inferred of an operation, whose tensors are those of `tensors`, in the order of the arguments."""
    inferred = InferredOperation(func)
    inferred.inputs, inferred.floats = len(tensors), floats
    if inferred.alias:
        return inferred
    if has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU"):
        # Seen only in inference mode; elsewhere torch has taken it apart before it comes here.
        inferred.decompose = True
        return inferred
    if func.name() not in ALLOWED:
        raise Unsupported(
            f"{func.name()} is not among the operations of PyTorch that remote devices run; "
            "bring its tensors here with cpu(), and place the results"
        )
    metas = {id(each): _meta_tensor(each.handle.meta) for each in tensors}
    order = list(tensors)
    inferred.mutates = _positions(order, mutated(func, args, kwargs, torch.is_tensor))
    inferred.stays = _positions(order, mutated(func, args, kwargs, torch.is_tensor, side_effects=False))
    if func in _ASK_THE_TASK or func in _LEARN:
        inferred.probe = True
        inferred.learn = func in _LEARN
        return inferred
    if func is aten.as_strided.default:
        return _as_strided(inferred, args, tensors)
    try:
        # Nobody watches: what meta tensors go through is no part of a program that is being recorded.
        with warnings.catch_warnings(), without_dispatch():
            warnings.simplefilter("ignore")
            returned = func(*_map(args, metas), **_map_kwargs(kwargs, metas))
    except Exception:
        if not schema_of(func).returns:  # it only writes, as fused optimizers do: there is nothing to infer
            inferred.outputs = [InferredOutput()]
            return inferred
        # Not known without values, or a mistake of the user's: the task's own kernel has the last word.
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
    names = [argument.name for argument in schema_of(func).arguments]
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
        inferred.first = only
    inferred.whole = inferred.is_view and len(inputs) == 1 and only.nbytes == inputs[0].nbytes


def learn(inferred: InferredOperation, outputs: list[InferredOutput]) -> None:
    """What a task has told of an operation holds for its signature from now on."""
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
        raise Unsupported(f"{name}: remote devices know no {value.layout} {value.dtype} tensors")
    meta = meta_of(tuple(value.shape), value.stride(), value.dtype, (value.is_conj(), value.is_neg()))
    memory = storage_key(value.untyped_storage())
    for position, each in enumerate(inputs):
        if storage_key(each.untyped_storage()) == memory:
            return InferredOutput(meta, position, int(value.storage_offset()))
    return InferredOutput(meta)


def _as_strided(
    inferred: InferredOperation, args: Sequence[Any], tensors: Sequence[Any]
) -> InferredOperation:
    """Its offset counts from the beginning of the memory, of which a meta tensor has none."""
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
    if isinstance(value, torch.device):
        return torch.device("meta")
    return value


def _map_kwargs(kwargs: dict[str, Any], metas: dict[int, torch.Tensor]) -> dict[str, Any]:
    return {name: _map(each, metas) for name, each in kwargs.items() if name != "pin_memory"}


def _positions(tensors: Sequence[torch.Tensor], some: Iterable[torch.Tensor]) -> tuple[int, ...]:
    """Where some of the tensors are among all."""
    wanted = {id(each) for each in some}
    return tuple(position for position, each in enumerate(tensors) if id(each) in wanted)


def _shape_of(returned: Any) -> Any:
    """None for a single thing; else the kind of sequence and what is in it."""
    if not isinstance(returned, list | tuple):
        return None
    return (list if isinstance(returned, list) else tuple, [_shape_of(each) for each in returned])


def results_of(inferred: InferredOperation) -> tuple[tuple[int, ...], tuple[Result, ...]]:
    """Which outputs are new values, and what they are, as a template says it."""
    picks, results = [], []
    for position, output in enumerate(inferred.outputs):
        if (meta := output.meta) is not None:
            picks.append(position)
            results.append(Result(meta.shape, meta.stride, dtype_name(meta.dtype), output.view_of))
    return tuple(picks), tuple(results)
