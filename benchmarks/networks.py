"""The networks, as numbers: what every contender builds with its own framework. Imports no framework."""

from __future__ import annotations

from dataclasses import dataclass

LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Network:
    """A network by name, and the data it is fed."""

    name: str
    title: str
    batch: int
    example: tuple[int, ...]
    classes: int
    examples: int
    layers: tuple[int, ...] = ()  # widths of the fully connected ones; with biases unless `bare`
    bare: bool = False
    channels: tuple[int, ...] = ()  # of the 3x3 convolutions, each followed by a 2x2 pooling


NETWORKS = {
    network.name: network
    for network in (
        Network("mnist", "784-500-500-10, 0.65 M parameters", 32, (784,), 10, 10_000, (784, 500, 500, 10)),
        # Two equal matrices, so that every placement can balance them over two servers.
        Network(
            "wide", "2500-5000-2500, 25 M parameters", 2, (2500,), 2500, 512, (2500, 5000, 2500), bare=True
        ),
        Network(
            "conv",
            "two 3x3 convolutions, two dense layers, 0.55 M parameters, CIFAR-10",
            32,
            (3, 32, 32),
            10,
            10_000,
            (64 * 8 * 8, 128, 10),
            channels=(3, 32, 64),
        ),
    )
}
