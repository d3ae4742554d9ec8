"""A template bound to a device of this task: looked up and checked once, called many times."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from argosy.errors import WireError
from argosy.remote.operations.allowed import find_operation
from argosy.remote.operations.instructions import (
    ArgumentReader,
    FloatPlaceholder,
    Result,
    Template,
    TensorPlaceholder,
)
from argosy.remote.operations.mutation import argument_names, has_joint_results, mutated
from argosy.remote.operations.preconditions import Check, precondition_of
from argosy.remote.transport.tensor_codec import dtype_name
from argosy.torch_private import has_kernel, overload_name, schema_of

# Operations that take no generator draw from that of the process, one at a time.
_default_generator_lock = threading.Lock()

# An operation that takes longer than this, in seconds, is worth a thread of its own.
HEAVY = 300e-6


@dataclass(frozen=True)
class BareCall:
    """An operation with its arguments: which of them are inputs, and which of its results are new values."""

    operation: Any
    arguments: list[Any]
    kwargs: dict[str, Any]
    placeholders: list[tuple[int, int]]
    picks: tuple[int, ...]
    is_single: bool  # it returns one tensor, which is new
    precondition: Check | None  # to be called first, with the same arguments


class Kernel:
    """An operation with its constants. `call` is thread-safe."""

    def __init__(self, template: Template, device: torch.device) -> None:
        self.template = template
        self.name = template.operation
        self.inputs = template.inputs
        self.floats = template.floats
        self.width = 3 + template.inputs + template.floats
        self.random = template.random
        self.grad = template.grad
        self.results = template.results
        self.outputs = len(template.picks)
        self.picks = template.picks
        self.views = tuple(result.view_of for result in template.results or ())
        self.heavy = False
        self.runs = 0
        self._checked = False
        self._device = device
        self._restride: dict[int, Result] = {}
        reader = ArgumentReader(device)
        self._args = [reader.read(each) for each in template.args]
        self._kwargs = {str(name): reader.read(each) for name, each in template.kwargs.items()}
        positions = range(template.inputs)
        if (reader.tensors, reader.floats) != (template.inputs, template.floats):
            counts = f"{template.inputs} tensors and {template.floats} floats"
            raise WireError(f"{self.name}: expected {counts}, got {reader.tensors} and {reader.floats}")
        if not {*self.views} <= {-1, *positions}:
            raise WireError(f"{self.name}: expected views of its inputs, got {self.views}")
        operation = find_operation(self.name)
        self.joint = has_joint_results(operation)
        inputs = mutated(operation, self._args, self._kwargs, lambda each: type(each) is TensorPlaceholder)
        self.mutates = tuple(sorted({each.number for each in inputs}))
        # It makes views only, and so takes no time.
        self.light = bool(self.views) and min(self.views) >= 0 and not self.mutates
        self._operation, self._draws = _with_generator(operation, template)
        self._precondition = precondition_of(operation) if device.type == "cpu" else None
        self._simple = all(not _varies(each) for each in self._kwargs.values()) and not any(
            isinstance(each, list) and _varies(each) for each in self._args
        )
        self._tensors = [(i, a.number) for i, a in enumerate(self._args) if type(a) is TensorPlaceholder]
        self._floats = [(i, a.number) for i, a in enumerate(self._args) if type(a) is FloatPlaceholder]

    def call(self, tensors: Sequence[Any], floats: Sequence[float], generator: torch.Generator) -> list[Any]:
        """Run it; returns the results that are new values."""
        if torch.is_grad_enabled() is not self.grad:
            torch.set_grad_enabled(self.grad)
        args: list[Any] = self._args.copy()
        kwargs = self._kwargs
        if self._simple:
            for position, number in self._tensors:
                args[position] = tensors[number]
            for position, number in self._floats:
                args[position] = floats[number]
        else:
            args = [_fill(each, tensors, floats) for each in args]
            kwargs = {name: _fill(each, tensors, floats) for name, each in kwargs.items()}
        if self._precondition is not None:
            self._precondition(*args, **kwargs)
        if self.random:
            returned = self._draw(args, kwargs, generator)
        else:
            returned = self._operation(*args, **kwargs)
        self.runs += 1
        if self.outputs == 1 and isinstance(returned, torch.Tensor):
            outputs: list[Any] = [returned]
        elif self.results is None:
            return flatten(returned)
        else:
            flat = flatten(returned)
            outputs = [flat[pick] for pick in self.picks]
        if not self._checked:
            self._check(outputs)
            self._checked = True
        if self._restride:
            for number, result in self._restride.items():
                laid = torch.empty_strided(result.shape, result.stride, dtype=outputs[number].dtype)
                outputs[number] = laid.copy_(outputs[number])
        return outputs

    def bare(self, floats: Sequence[float]) -> BareCall | None:
        """The call without checks, once some were made with checks; None if it takes more than that."""
        if not (self._simple and self._checked and self.results is not None):
            return None
        if self.random or self._restride:
            return None
        returns = schema_of(self._operation).returns
        is_single = self.outputs == 1 and len(returns) == 1 and str(returns[0].type) == "Tensor"
        if not is_single and any(str(each.type) != "Tensor" for each in returns) and self.outputs:
            return None
        arguments = self._args.copy()
        for position, number in self._floats:
            arguments[position] = floats[number]
        # `__call__` of the operation calls this; to do so directly saves a quarter of a small one's time.
        operation, check = self._operation.op, self._precondition
        return BareCall(operation, arguments, self._kwargs, self._tensors, self.picks, is_single, check)

    def out_form(self) -> Any:
        """The form that writes its result to a given tensor, `out`; None if the CPU has no kernel for it."""
        operation, packet = self._operation, self._operation.overloadpacket
        is_plain = overload_name(operation) == "default" and self._device.type == "cpu"
        if not is_plain or "out" not in packet.overloads():
            return None
        found = packet.out
        # Without a kernel of its own it would compute elsewhere, and copy.
        is_kernel = has_kernel(found.name(), "CPU")
        takes = argument_names(found)
        return found.op if is_kernel and takes == [*argument_names(operation), "out"] else None

    def _draw(self, args: list[Any], kwargs: dict[str, Any], generator: torch.Generator) -> Any:
        if self._draws:
            return self._operation(*args, **kwargs, generator=generator)
        with _default_generator_lock:
            before = torch.default_generator.get_state()
            torch.default_generator.set_state(generator.get_state())
            try:
                return self._operation(*args, **kwargs)
            finally:
                generator.set_state(torch.default_generator.get_state())
                torch.default_generator.set_state(before)

    def _check(self, outputs: Sequence[Any]) -> None:
        """Compare the results with what the client inferred, and went on with."""
        for number, (output, result) in enumerate(zip(outputs, self.results or (), strict=True)):
            if not isinstance(output, torch.Tensor):
                raise RuntimeError(f"{self.name}: expected a tensor as output {number}, got {output!r:.60}")
            got = (tuple(output.shape), dtype_name(output.dtype))
            if got != (result.shape, result.dtype):
                raise RuntimeError(
                    f"{self.name}: expected output {number} to be {result.dtype} of {list(result.shape)}, "
                    f"got {got[1]} of {list(got[0])}"
                )
            if not _same_strides(output, result.stride):
                if result.view_of >= 0:
                    strides = f"{list(result.stride)}, got {list(output.stride())}"
                    raise RuntimeError(f"{self.name}: expected a view with strides {strides}")
                self._restride[number] = result


def _same_strides(tensor: torch.Tensor, stride: Sequence[int]) -> bool:
    return not tensor.numel() or all(
        size == 1 or mine == theirs
        for size, mine, theirs in zip(tensor.shape, tensor.stride(), stride, strict=True)
    )


def _with_generator(operation: Any, template: Template) -> tuple[Any, bool]:
    """The operation, or its form with a generator, and whether it takes one."""
    if not template.random:
        return operation, False
    names = argument_names(operation)
    if "generator" in names:
        template.kwargs.pop("generator", None)
        return operation, len(template.args) <= names.index("generator")
    packet = operation.overloadpacket
    suffix = {"default": "generator", "low": "low_generator"}.get(overload_name(operation))
    if suffix is not None and suffix in packet.overloads():
        other = getattr(packet, suffix)
        keyword = next(a for a in schema_of(other).arguments if a.name == "generator").kwarg_only
        if keyword and [name for name in argument_names(other) if name != "generator"] == names:
            return other, True
    return operation, False


def _varies(value: Any) -> bool:
    return isinstance(value, TensorPlaceholder) or (isinstance(value, list) and any(map(_varies, value)))


def _fill(value: Any, tensors: Sequence[Any], floats: Sequence[float]) -> Any:
    if type(value) is TensorPlaceholder:
        return tensors[value.number]
    if type(value) is FloatPlaceholder:
        return floats[value.number]
    if type(value) is list:
        return [_fill(each, tensors, floats) for each in value]
    return value


def flatten(returned: Any) -> list[Any]:
    """What an operation returned, without the lists and tuples around it."""
    if not isinstance(returned, list | tuple):
        return [returned]
    flat: list[Any] = []
    for each in returned:
        flat.extend(flatten(each) if isinstance(each, list | tuple) else (each,))
    return flat
