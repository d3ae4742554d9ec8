"""Towers: one worker's model on several devices at a time.

A batch is split, each tower runs forward on its part in a thread of its own, and the outputs come back as of
one model. Backward runs tower by tower in the same threads; the gradients are added in the order of the
towers and arrive once, as if one device had seen the whole batch. Parameters live once: a tower on another
device works on copies that last for one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from argosy import torch_private as private
from argosy.errors import ConfigError
from argosy.torch_private import TreeSpec

T = TypeVar("T")


def choose_devices(devices: Sequence[str | torch.device] | None, num_gpus: int | None) -> list[torch.device]:
    """What was asked for, checked; else what `--num_gpus` says, or every GPU, or the CPU."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices is None:
        count = there if num_gpus is None else num_gpus
        if count > there:
            raise ConfigError("num_gpus", f"at most the {there} GPUs of this machine", count)
        return [torch.device("cuda", index) for index in range(count)] or [torch.device("cpu")]
    chosen = [torch.device(device) for device in devices]
    if not chosen:
        raise ConfigError("devices", "at least one device", "none")
    for device in chosen:
        if device.type == "cuda" and (device.index or 0) >= there:
            raise ConfigError("devices", f"one of the {there} GPUs of this machine", device)
    return chosen


def split_sizes(count: int, towers: int) -> list[int]:
    """How many of `count` examples each tower gets: as even as can be, the first ones more, none empty."""
    used = max(1, min(count, towers))
    return [count // used + (tower < count % used) for tower in range(used)]


@dataclass(frozen=True)
class _Part:
    """One tower's share of a call."""

    model: nn.Module
    parameters: list[Tensor]  # of this tower, in the order of the model's
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device


class Towers(nn.Module):
    """Made by `replica.towers(model, devices)`; called like the model."""

    def __init__(self, model: nn.Module, devices: Sequence[torch.device]) -> None:
        super().__init__()
        self.module = model
        self.devices = tuple(devices)
        self._pool = ThreadPoolExecutor(len(devices), thread_name_prefix="argosy-tower")
        share = max(1, torch.get_num_threads() // len(devices))
        self._threads = share if all(device.type == "cpu" for device in devices) else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output for the whole batch; what each tower returns is joined along the batch.

        Every tensor whose first dimension is the batch is split. A scalar, such as a loss, becomes the mean
        of the towers', weighted by their examples.
        """
        leaves, spec = private.tree_flatten((args, kwargs))
        batch = next((leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 0)
        sizes = split_sizes(batch, len(self.devices))
        if len(sizes) == 1 and _is_at(self.module, self.devices[0]):
            return self.module(*args, **kwargs)
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        call = _Call(self, leaves, spec, sizes)
        if torch.is_grad_enabled() and (trained or inputs):
            outputs = _Run.apply(call, *trained, *inputs)  # type: ignore[no-untyped-call]
        else:
            outputs = call.forward(trained, grad=False)
        return private.tree_unflatten(list(outputs), call.output_spec)

    def run(self, work: Callable[[T], Any], parts: Sequence[T]) -> list[Any]:
        """`work` for each part, each in a thread of its own; raises the first tower's error."""
        threads = self._threads

        def guarded(part: T) -> Any:
            if threads is not None and torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            return work(part)

        return [future.result() for future in [self._pool.submit(guarded, part) for part in parts]]


class _Call:
    """One forward through all towers, and what its backward needs."""

    def __init__(self, towers: Towers, leaves: Sequence[Any], spec: TreeSpec, sizes: Sequence[int]) -> None:
        self._towers = towers
        self._leaves = leaves
        self._spec = spec
        self._sizes = sizes
        self.output_spec: TreeSpec
        self._autocast = {
            kind: torch.get_autocast_dtype(kind)
            for kind in ("cpu", "cuda")
            if torch.is_autocast_enabled(kind)
        }

    def forward(self, trained: Sequence[Tensor], grad: bool) -> list[Tensor]:
        """The outputs, joined; detached from the towers' own graphs, which are kept for backward."""
        parts = self._cut(trained, grad)
        results = self._towers.run(lambda part: self._forward_one(part, grad), parts)
        flat = [private.tree_flatten(result) for result in results]
        self.output_spec = flat[0][1]
        self._parts, self._outputs = parts, [leaves for leaves, _ in flat]
        return [self._join(column) for column in zip(*self._outputs, strict=True)]

    def _forward_one(self, part: _Part, grad: bool) -> Any:
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(grad))
            for kind, dtype in self._autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype))
            if part.device.type == "cuda":
                stack.enter_context(torch.cuda.device(part.device))
            return part.model(*part.args, **part.kwargs)

    def _cut(self, trained: Sequence[Tensor], grad: bool) -> list[_Part]:
        cut = [self._leaf_parts(leaf, grad) for leaf in self._leaves]
        parts = []
        self._inputs: list[list[Tensor]] = []
        for tower, device in enumerate(self._towers.devices[: len(self._sizes)]):
            leaves = [each[tower] for each in cut]
            args, kwargs = private.tree_unflatten(leaves, self._spec)
            model, parameters = _tower_of(self._towers.module, tower, device, trained)
            parts.append(_Part(model, parameters, args, kwargs, device))
            given = zip(leaves, self._leaves, strict=True)
            self._inputs.append([leaf for leaf, whole in given if _wants_grad(whole)])
        return parts

    def _leaf_parts(self, leaf: Any, grad: bool) -> list[Any]:
        """A leaf of the arguments for each tower: split along the batch, or the same for all."""
        devices = self._towers.devices[: len(self._sizes)]
        if not isinstance(leaf, Tensor):
            return [leaf] * len(devices)
        whole = leaf.detach()
        splits = leaf.dim() > 0 and leaf.shape[0] == sum(self._sizes)
        pieces = whole.split(list(self._sizes)) if splits else [whole] * len(devices)
        moved = [piece.to(device) for piece, device in zip(pieces, devices, strict=True)]
        if not (grad and leaf.requires_grad):
            return moved
        return [(each.detach() if splits else each.clone()).requires_grad_() for each in moved]

    def _join(self, column: Sequence[Any]) -> Any:
        first = column[0]
        if not isinstance(first, Tensor):
            return first
        home = self._towers.devices[0]
        if first.dim():
            return torch.cat([each.detach().to(home) for each in column])
        total = sum(self._sizes)
        shares = [size / total for size in self._sizes]
        return sum(each.detach().to(home) * share for each, share in zip(column, shares, strict=True))

    def backward(self, gradients: Sequence[Tensor | None], trained: int) -> list[Tensor | None]:
        """The gradients of the parameters, added over the towers, and of the inputs, joined."""
        cut = [self._gradient_parts(number, gradient) for number, gradient in enumerate(gradients)]
        work = [(tower, [each[tower] for each in cut]) for tower in range(len(self._parts))]
        towers = self._towers.run(self._backward_one, work)
        result: list[Tensor | None] = []
        for column in zip(*(each[:trained] for each in towers), strict=True):
            there: list[Tensor] = [gradient for gradient in column if gradient is not None]
            # Not in place: a tower's gradient may be a tensor that its graph still holds.
            result.append(reduce(lambda a, b: a + b.to(a.device), there) if there else None)
        wholes = [leaf for leaf in self._leaves if _wants_grad(leaf)]
        for whole, column in zip(wholes, zip(*(each[trained:] for each in towers), strict=True), strict=True):
            result.append(self._input_gradient(whole, column))
        return result

    def _gradient_parts(self, number: int, gradient: Tensor | None) -> list[Tensor | None]:
        outputs = [leaves[number] for leaves in self._outputs]
        if gradient is None or not isinstance(outputs[0], Tensor):
            return [None] * len(outputs)
        if outputs[0].dim():
            pieces: Sequence[Tensor] = gradient.split([len(output) for output in outputs])
        else:
            pieces = [gradient * (size / sum(self._sizes)) for size in self._sizes]
        return [piece.to(output.device) for piece, output in zip(pieces, outputs, strict=True)]

    def _backward_one(self, work: tuple[int, list[Tensor | None]]) -> list[Tensor | None]:
        tower, gradients = work
        part = self._parts[tower]
        roots = [
            (output, gradient)
            for output, gradient in zip(self._outputs[tower], gradients, strict=True)
            if gradient is not None and isinstance(output, Tensor) and output.requires_grad
        ]
        leaves = [*part.parameters, *self._inputs[tower]]
        if not roots:
            return [None] * len(leaves)
        outputs, given = zip(*roots, strict=True)
        return list(torch.autograd.grad(outputs, leaves, given, allow_unused=True))

    def _input_gradient(self, whole: Tensor, column: Sequence[Tensor | None]) -> Tensor | None:
        there = [gradient.to(whole.device) for gradient in column if gradient is not None]
        if len(there) < len(column):
            return None
        if whole.dim() and whole.shape[0] == sum(self._sizes):
            return torch.cat(there)
        return torch.stack(there).sum(dim=0)


class _Run(torch.autograd.Function):
    """Forward and backward of all towers, as one operation of the caller's graph."""

    @staticmethod
    def forward(context: Any, call: _Call, *tensors: Tensor) -> Any:
        trained = [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
        context.call, context.trained = call, len(trained)
        return tuple(call.forward(trained, grad=True))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, *gradients: Tensor | None) -> Any:
        return (None, *context.call.backward(gradients, context.trained))


def _wants_grad(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def _is_at(model: nn.Module, device: torch.device) -> bool:
    first = next(model.parameters(), None)
    return first is None or first.device == device


def _tower_of(
    model: nn.Module, tower: int, device: torch.device, trained: Sequence[Tensor]
) -> tuple[nn.Module, list[Tensor]]:
    """The model for one tower: the first one on its own device is the model itself, the others are replicas.

    A replica shares the parameters where they are on its device. Its buffers are its own, and forgotten
    afterwards: running statistics are the first tower's, and no two threads write to one tensor.
    """
    if tower == 0 and _is_at(model, device):
        return model, list(trained)
    copies: dict[int, Tensor] = {}

    def here(tensor: Tensor) -> Tensor:
        if id(tensor) not in copies:
            moved = tensor
            if tensor.device != device:
                moved = tensor.detach().to(device).requires_grad_(tensor.requires_grad)
            copies[id(tensor)] = moved
        return copies[id(tensor)]

    replicas: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        replica = private.copy_for_device(module)
        mine = {n: None if p is None else here(p) for n, p in private.parameters_of(module).items()}
        private.parameters_of(replica).update(mine)  # type: ignore[arg-type]  # tensors, as in DataParallel
        for name, buffer in private.buffers_of(module).items():
            copied = None if buffer is None else buffer.detach().to(device, copy=True)
            private.buffers_of(replica)[name] = copied
        replicas[module] = replica
    for module, replica in replicas.items():
        children = {n: None if m is None else replicas[m] for n, m in private.modules_of(module).items()}
        private.modules_of(replica).update(children)
    return replicas[model], [here(parameter) for parameter in trained]
