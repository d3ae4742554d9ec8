"""Learn to tell ten kinds of things in pictures: a convolutional network on CIFAR-10, over towers.

    python examples/cifar10.py --data DIR                                   alone, on 2 towers
    argosy run --workers 2 --mode ring examples/cifar10.py --data DIR       a ring of 2 workers
    argosy run --ps 1 --workers 2 examples/cifar10.py --data DIR            1 server, 2 workers

DIR holds the dataset's binary batches (data_batch_1.bin, test_batch.bin, gzip or not); without --data, a
small synthetic set in the same format. A worker with GPUs uses --num_gpus of them; else its CPU, as towers.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import argosy
from argosy.datasets import cifar10


class Net(nn.Sequential):
    """Three blocks of convolution, normalisation and pooling, then two linear layers: 357,000 parameters."""

    def __init__(self) -> None:
        blocks: list[nn.Module] = []
        for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
            blocks += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)]
            blocks += [nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(
            *blocks, nn.Flatten(), nn.Linear(128 * 16, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10)
        )


def main() -> None:
    replica = argosy.join()
    args = arguments()
    pictures = cifar10.load(args.data)
    last_step = args.epochs * len(pictures.train_labels) // args.batch

    torch.manual_seed(args.seed)  # the same model everywhere ...
    model = Net()
    devices = None if replica.num_gpus else ["cpu"] * args.towers
    towers = replica.towers(model, devices)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: max(0.01, 1 - optimizer.verdict.global_step / max(1, last_step))
    )
    replica.seed(args.seed)  # ... and an order of the pictures that is this worker's own
    loader = cifar10.Batches(pictures.train_images, pictures.train_labels, args.batch)

    with replica.session(model, optimizer, last_step=last_step) as session:
        begin = time.time()
        for step, (images, labels) in enumerate(session.batches(loader), start=1):
            optimizer.zero_grad()
            loss = F.cross_entropy(towers(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            session.log(loss=loss)
            if step % 100 == 0:
                done = f"training step {step} done (global step: {session.global_step}), loss {loss:.4f}"
                print(f"{time.time():.6f}: Worker {replica.index}: {done}", flush=True)
        print(f"Training elapsed time: {time.time() - begin:.6f} s", flush=True)

    accuracy = evaluate(model, pictures.test_images, pictures.test_labels)
    print(f"After {session.global_step} training step(s), accuracy = {accuracy:.4f}", flush=True)


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of the pictures that are told right."""
    model.eval()
    right = [model(part).argmax(dim=1) for part in images.split(500)]
    return (torch.cat(right) == labels).float().mean().item()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learn CIFAR-10 over towers, alone or on a cluster.")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the pictures (%(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="pictures in a worker's batch (%(default)s)")
    parser.add_argument("--towers", type=int, default=2, help="towers of a worker's CPU (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="the first learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the model and the shuffling (%(default)s)")
    parser.add_argument("--data", type=Path, help="a folder of binary batches (default: a synthetic set)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
