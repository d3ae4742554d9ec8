"""A template made ready to run on this task: the operation looked up and checked once, called many times."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from argosy.errors import WireError
from argosy.remote.operations.allowed import find_operation
from argosy.remote.operations.instructions import ArgumentReader, FloatHole, Hole, Result, Template
from argosy.remote.operations.mutation import is_joint, written
from argosy.remote.operations.preconditions import Check, precondition_of
from argosy.remote.transport.tensor_codec import dtype_name
from argosy.torch_private import has_kernel, overload_name, schema_of

# One at a time: an operation without a generator of its own draws from the process's.
_default_generator_lock = threading.Lock()

# An operation that takes longer than this is worth a thread of its own beside others, in seconds.
HEAVY = 300e-6


@dataclass(frozen=True)
class Bare:
    """An operation, its arguments, which of them are which inputs, and which of its results are new."""

    operation: Any
    arguments: list[Any]
    kwargs: dict[str, Any]
    holes: list[tuple[int, int]]
    picks: tuple[int, ...]
    is_single: bool  # it returns one tensor, which is new
    precondition: Check | None  # to be called first, with the same arguments


class Compiled:
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
            raise WireError(f"{self.name}: its holes are not what it says")
        if not {*self.views} <= {-1, *positions}:
            raise WireError(f"{self.name}: expected positions of its inputs")
        operation = find_operation(self.name)
        self.joint = is_joint(operation)
        holes = written(operation, self._args, self._kwargs, lambda each: type(each) is Hole)
        self.mutates = tuple(sorted({hole.number for hole in holes}))
        # It only looks at memory: what is to be sent may wait for it.
        self.light = bool(self.views) and min(self.views) >= 0 and not self.mutates
        self._operation, self._draws = _with_generator(operation, template)
        self._precondition = precondition_of(operation) if device.type == "cpu" else None
        self._simple = all(not _has_holes(each) for each in self._kwargs.values()) and not any(
            isinstance(each, list) and _has_holes(each) for each in self._args
        )
        self._holes = [(i, a.number) for i, a in enumerate(self._args) if type(a) is Hole]
        self._float_holes = [(i, a.number) for i, a in enumerate(self._args) if type(a) is FloatHole]

    def call(self, tensors: Sequence[Any], floats: Sequence[float], generator: torch.Generator) -> list[Any]:
        """Run it; what it returns, flattened to the values that are new."""
        if torch.is_grad_enabled() is not self.grad:
            torch.set_grad_enabled(self.grad)
        args: list[Any] = self._args.copy()
        kwargs = self._kwargs
        if self._simple:
            for position, number in self._holes:
                args[position] = tensors[number]
            for position, number in self._float_holes:
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

    def bare(self, floats: Sequence[float]) -> Bare | None:
        """For calls without checks, after some with. None if there is more to it."""
        if not (self._simple and self._checked and self.results is not None):
            return None
        if self.random or self._restride:
            return None
        returns = schema_of(self._operation).returns
        is_single = self.outputs == 1 and len(returns) == 1 and str(returns[0].type) == "Tensor"
        if not is_single and any(str(each.type) != "Tensor" for each in returns) and self.outputs:
            return None
        arguments = self._args.copy()
        for position, number in self._float_holes:
            arguments[position] = floats[number]
        # What the operation's `__call__` calls: a quarter of the time of a small one.
        operation, check = self._operation.op, self._precondition
        return Bare(operation, arguments, self._kwargs, self._holes, self.picks, is_single, check)

    def out_form(self) -> Any:
        """What writes its result to memory that it is given; None if there is no such kernel here."""
        operation, packet = self._operation, self._operation.overloadpacket
        is_plain = overload_name(operation) == "default" and self._device.type == "cpu"
        if not is_plain or "out" not in packet.overloads():
            return None
        found = packet.out
        names = [argument.name for argument in schema_of(operation).arguments]
        # One that is made of the other form would only copy.
        is_kernel = has_kernel(found.name(), "CPU")
        takes = [argument.name for argument in schema_of(found).arguments]
        return found.op if is_kernel and takes == [*names, "out"] else None

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
        """The client has gone on with shapes that it inferred: they must be what there is."""
        for number, (output, result) in enumerate(zip(outputs, self.results or (), strict=True)):
            if not isinstance(output, torch.Tensor):
                raise RuntimeError(f"{self.name}: expected a tensor as output {number}, got {output!r:.60}")
            got = (tuple(output.shape), dtype_name(output.dtype))
            if got != (result.shape, result.dtype):
                raise RuntimeError(
                    f"{self.name}: expected output {number} to be {result.dtype} of {list(result.shape)}, "
                    f"and is {got[1]} of {list(got[0])}"
                )
            if not _same_strides(output, result.stride):
                if result.view_of >= 0:
                    raise RuntimeError(f"{self.name}: a view with other strides than the client's")
                self._restride[number] = result


def _same_strides(tensor: torch.Tensor, stride: Sequence[int]) -> bool:
    return not tensor.numel() or all(
        size == 1 or mine == theirs
        for size, mine, theirs in zip(tensor.shape, tensor.stride(), stride, strict=True)
    )


def _with_generator(operation: Any, template: Template) -> tuple[Any, bool]:
    """The operation, or its form that takes a generator, and whether it does."""
    if not template.random:
        return operation, False
    if any(argument.name == "generator" for argument in schema_of(operation).arguments):
        template.kwargs.pop("generator", None)
        return operation, len(template.args) <= _position(operation, "generator")
    packet = operation.overloadpacket
    suffix = {"default": "generator", "low": "low_generator"}.get(overload_name(operation))
    if suffix is not None and suffix in packet.overloads():
        other = getattr(packet, suffix)
        names = [argument.name for argument in schema_of(other).arguments if argument.name != "generator"]
        mine = [argument.name for argument in schema_of(operation).arguments]
        keyword = next(a for a in schema_of(other).arguments if a.name == "generator").kwarg_only
        if names == mine and keyword:
            return other, True
    return operation, False


def _position(operation: Any, name: str) -> int:
    return [argument.name for argument in schema_of(operation).arguments].index(name)


def _has_holes(value: Any) -> bool:
    return isinstance(value, Hole) or (isinstance(value, list) and any(map(_has_holes, value)))


def _fill(value: Any, tensors: Sequence[Any], floats: Sequence[float]) -> Any:
    if type(value) is Hole:
        return tensors[value.number]
    if type(value) is FloatHole:
        return floats[value.number]
    if type(value) is list:
        return [_fill(each, tensors, floats) for each in value]
    return value


def flatten(returned: Any) -> list[Any]:
    """What an operation returned, lists inside tuples opened."""
    if not isinstance(returned, list | tuple):
        return [returned]
    flat: list[Any] = []
    for each in returned:
        flat.extend(flatten(each) if isinstance(each, list | tuple) else (each,))
    return flat
