"""What `benchmarks/compare.py` runs on each side of a pair: steps of one kind, while it is this side's turn.

The two sides are alive at once and share one byte of memory, which says whose turn it is. A step is noted by
its time; whoever compares knows when each turn began and ended.
"""

from __future__ import annotations

import argparse
import mmap
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import argosy
from benchmarks.contenders.job import end_with_parent, write_whole
from benchmarks.networks import LEARNING_RATE

OVER = 255  # in place of a side: nobody's turn will come again
_PAUSE = 0.0005
_WIDTHS = (784, 500, 500, 10)
_BATCH = 32


class Turns:
    """One process's view of whose turn it is, and the times of its own steps."""

    def __init__(self, gate: Path, side: int, out: Path, index: int) -> None:
        with gate.open("r+b") as file:
            self._turn = mmap.mmap(file.fileno(), 1)
        self._side = side
        self._path = out / f"worker-{index}.json"
        self._ready = out / f"ready-{index}"
        self._stamps: list[float] = []

    def step(self) -> bool:
        """A step was made: wait until the next one may be; False once all is over."""
        if not self._stamps:
            self._ready.touch()
        self._stamps.append(time.monotonic())
        while (turn := self._turn[0]) != self._side:
            if turn == OVER:
                write_whole(self._path, {"stamps": self._stamps})
                return False
            time.sleep(_PAUSE)
        return True


def network() -> nn.Module:
    """The MNIST network of the other parts."""
    layers: list[nn.Module] = []
    for width, following in pairwise(_WIDTHS):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batch() -> tuple[Tensor, Tensor]:
    """One batch, the same again and again: where the data come from is no part of this."""
    return torch.randn(_BATCH, _WIDTHS[0]), torch.randint(0, _WIDTHS[-1], (_BATCH,))


def train(args: argparse.Namespace) -> None:
    """A worker of `argosy run`, in whatever mode it was started."""
    replica = argosy.join()
    replica.seed(1)
    model = network()
    optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True))
    turns = Turns(args.gate, args.side, args.out, replica.index)
    with replica.session(model, optimizer) as session:
        for inputs, labels in session.batches([batch() for _ in range(64)]):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
            if not turns.step():
                break


def reduce_all(args: argparse.Namespace) -> None:
    """A rank of an all-reduce of as many numbers as the network has."""
    import argosy.ring  # noqa: F401  (makes the backend known)

    end_with_parent()
    store = f"file://{args.out}/store"
    dist.init_process_group("argosy", init_method=store, rank=args.index, world_size=args.count)
    numbers = torch.ones(sum(each.numel() for each in network().parameters()))
    turns = Turns(args.gate, args.side, args.out, args.index)
    while True:
        numbers.fill_(1.0)
        dist.all_reduce(numbers)
        if args.index == 0 and not turns.step():
            return


def replay(args: argparse.Namespace) -> None:
    """The client of a captured step: parameters on a ps task, forward and backward on a worker."""
    with argosy.connect():
        with argosy.device("/job:ps/task:0"):
            model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def step(images: Tensor, labels: Tensor) -> Tensor:
            with argosy.device("/job:worker/task:0"):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
            with argosy.device("/job:ps/task:0"):
                optimizer.step()
            return loss.detach()

        captured = argosy.capture(step)
        images, labels = batch()
        for _ in range(20):
            captured(images, labels).item()
        turns = Turns(args.gate, args.side, args.out, 0)
        while turns.step():
            captured(images, labels).item()


def main() -> None:
    """One process of one side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=["train", "allreduce", "captured"], required=True)
    parser.add_argument("--gate", type=Path, required=True)
    parser.add_argument("--side", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    {"train": train, "allreduce": reduce_all, "captured": replay}[args.what](args)


if __name__ == "__main__":
    main()
