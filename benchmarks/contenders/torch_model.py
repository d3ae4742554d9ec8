"""The networks in PyTorch, their data in memory, and flat views: shared by the contenders that use torch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.networks import Network


def build(network: Network) -> nn.Sequential:
    """The model, the same numbers in every process."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(network.channels):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    if network.channels:
        layers.append(nn.Flatten())
    for inputs, outputs in pairwise(network.layers):
        layers += [nn.Linear(inputs, outputs, bias=not network.bare), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Batches:
    """Random batches from memory: one gather of rows each, in a new order each time it is iterated."""

    def __init__(self, network: Network, data: Path, seed: int) -> None:
        count = network.examples
        numbers = 1
        for size in network.example:
            numbers *= size
        inputs = torch.from_file(str(data / f"{network.name}.inputs"), size=count * numbers)
        self._inputs = inputs.view(count, *network.example).clone()
        self._labels = torch.from_file(
            str(data / f"{network.name}.labels"), size=count, dtype=torch.int64
        ).clone()
        self._batch = network.batch
        self._generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._labels), generator=self._generator)
        for rows in order[: len(order) // self._batch * self._batch].view(-1, self._batch):
            yield self._inputs.index_select(0, rows), self._labels.index_select(0, rows)

    def forever(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Epoch after epoch."""
        while True:
            yield from self


def split_evenly(parameters: list[nn.Parameter], servers: int) -> list[list[nn.Parameter]]:
    """A share of the parameters for each server, the largest first to whoever has least."""
    shares: list[list[nn.Parameter]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for parameter in sorted(parameters, key=torch.numel, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(parameter)
        loads[least] += parameter.numel()
    return shares


def flat_copy(tensors: list[Tensor], out: Tensor) -> None:
    """Many tensors into one flat one."""
    torch._foreach_copy_(_views(out, tensors), tensors)


def flat_restore(flat: Tensor, tensors: list[Tensor]) -> None:
    """One flat tensor back into many."""
    torch._foreach_copy_(tensors, _views(flat, tensors))


def _views(flat: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    sizes = [tensor.numel() for tensor in tensors]
    return [part.view_as(like) for part, like in zip(flat.split(sizes), tensors, strict=True)]
