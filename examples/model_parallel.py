"""One model on two tasks: its first half on one, its second on the other, and micro-batches between them.

    argosy run --serve --ps 0 --workers 2 --threads 1 examples/model_parallel.py

Each micro-batch goes forward through both tasks and back. The client waits for nothing, and a task that
waits for a tensor goes on with the next micro-batch: so both work at the same time. Beside it, all layers on
one task.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import argosy

# The first call runs as it is, the second is recorded, and each task tries its share out a few times.
_SETTLED = 6


def main() -> None:
    args = arguments()
    with argosy.connect(args.target) as client:
        workers = [name for name in client.devices() if "/job:worker/" in name][:2]
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(args.batch, args.width, generator=generator)
        labels = torch.randint(0, 10, (args.batch,), generator=generator)
        seconds = {}
        for name, devices in (("one task", workers[:1] * 2), ("both tasks", workers)):
            seconds[name], loss = train(client, devices, images, labels, args)
            print(f"{name}: {seconds[name] * 1000:.1f} ms a step, loss {loss:.4f}", flush=True)
        print(f"both tasks are {seconds['one task'] / seconds['both tasks']:.2f} x as fast as one")


def train(
    client: argosy.Client, devices: Sequence[str], images: Tensor, labels: Tensor, args: argparse.Namespace
) -> tuple[float, float]:
    """Seconds a step, and the last loss."""
    torch.manual_seed(0)
    stages = []
    for index, device in enumerate(devices):
        with argosy.device(device):
            stages.append(stage(args.width, args.layers, last=index == len(devices) - 1))
    model = nn.Sequential(*stages)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        total: Tensor | None = None
        parts = zip(images.chunk(args.micro_batches), labels.chunk(args.micro_batches), strict=True)
        for part, wanted in parts:
            for device, layers in zip(devices, stages, strict=True):
                with argosy.device(device):
                    part = layers(part)
            with argosy.device(devices[-1]):
                loss = F.cross_entropy(part, wanted) / args.micro_batches
                total = loss.detach() if total is None else total + loss.detach()
            loss.backward()
        optimizer.step()
        assert total is not None
        return total

    captured = argosy.capture(step)
    for _ in range(_SETTLED):
        loss = captured(images, labels)
    client.synchronize()
    begin = time.perf_counter()
    for _ in range(args.steps):
        loss = captured(images, labels)
    client.synchronize()
    return (time.perf_counter() - begin) / args.steps, loss.item()


def stage(width: int, layers: int, last: bool) -> nn.Sequential:
    """Half of the model."""
    made: list[nn.Module] = []
    for _ in range(layers):
        made += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*made, nn.Linear(width, 10)) if last else nn.Sequential(*made)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A model on two tasks, in micro-batches.")
    parser.add_argument(
        "target", nargs="?", help="host:port of any task (default: that of argosy run --serve)"
    )
    parser.add_argument("--steps", type=int, default=10, help="steps to time (%(default)s)")
    parser.add_argument("--batch", type=int, default=1024, help="rows in a batch (%(default)s)")
    parser.add_argument("--micro-batches", type=int, default=8, help="parts of a batch (%(default)s)")
    parser.add_argument("--width", type=int, default=768, help="of each layer (%(default)s)")
    parser.add_argument("--layers", type=int, default=3, help="on each task (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
