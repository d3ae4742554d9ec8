"""MNIST by one client: parameters on a server, a tower on each worker, gradients averaged. In-graph
replication.

    argosy run --serve --ps 1 --workers 2 examples/in_graph.py
    argosy run --serve --ps 1 --workers 2 examples/in_graph.py --asynchronous

One program builds and drives it all. In step, the towers' gradients are averaged and applied once;
asynchronously, each tower has a thread here, which applies its gradients when they are there.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import argosy
from argosy.datasets import mnist

SERVER = "/job:ps/task:0"
Batch = tuple[Tensor, Tensor]


def main() -> None:
    args = arguments()
    digits = mnist.load()
    torch.manual_seed(args.seed)
    with argosy.connect(args.target) as client:
        workers = sorted({name.rpartition("/")[0] for name in client.devices() if "/job:worker/" in name})
        with argosy.device(SERVER):
            model = nn.Sequential(
                nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 10)
            )
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
        shares = [
            batches(
                digits.train_images[i :: len(workers)], digits.train_labels[i :: len(workers)], args.batch
            )
            for i in range(len(workers))
        ]
        begin = time.time()
        train = train_asynchronously if args.asynchronous else train_in_step
        train(model, optimizer, workers, shares, args.steps)
        client.synchronize()
        if args.save:
            torch.save(argosy.fetch(model.state_dict()), args.save)
        print(f"Training elapsed time: {time.time() - begin:.6f} s")
        with torch.no_grad(), argosy.device(workers[0]):
            logits = model(digits.test_images)
            accuracy = (logits.argmax(dim=1) == digits.test_labels).float().mean().item()
            cross_entropy = F.cross_entropy(logits, digits.test_labels).item()
        print(
            f"After {args.steps} training step(s), "
            f"validation cross entropy = {cross_entropy:.6g}, accuracy = {accuracy:.4f}"
        )


def gradients_of(model: nn.Module, device: str, images: Tensor, labels: Tensor) -> Sequence[Tensor]:
    """A tower: forward and backward on one worker."""
    with argosy.device(device):
        loss = F.cross_entropy(model(images), labels)
    return torch.autograd.grad(loss, list(model.parameters()))


def train_in_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    workers: Sequence[str],
    shares: Sequence[Iterator[Batch]],
    steps: int,
) -> None:
    """Each step takes one batch a worker, averages, and applies once."""

    def step(*towers: Batch) -> None:
        found = [gradients_of(model, worker, *batch) for worker, batch in zip(workers, towers, strict=True)]
        with argosy.device(SERVER):
            for parameter, *gradients in zip(model.parameters(), *found, strict=True):
                parameter.grad = torch.stack(gradients).mean(dim=0)
            optimizer.step()

    captured = argosy.capture(step)
    for _ in range(steps):
        captured(*(next(share) for share in shares))


def train_asynchronously(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    workers: Sequence[str],
    shares: Sequence[Iterator[Batch]],
    steps: int,
) -> None:
    """Each worker's gradients are applied when they are there, by a thread that waits for nobody else's."""
    counter = iter(range(steps))
    lock = threading.Lock()

    def drive(worker: str, share: Iterator[Batch]) -> None:
        while True:
            with lock:  # while operations are sent; nothing is computed here
                if next(counter, None) is None:
                    return
                gradients = gradients_of(model, worker, *next(share))
                with argosy.device(SERVER):
                    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                        parameter.grad = gradient
                    optimizer.step()
            gradients[-1].sum().item()  # wait for this worker, and let the others go on

    threads = [threading.Thread(target=drive, args=pair) for pair in zip(workers, shares, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def batches(images: Tensor, labels: Tensor, size: int) -> Iterator[Batch]:
    """Batches for ever, in the order of the digits."""
    while True:
        for first in range(0, len(images) - size + 1, size):
            yield images[first : first + size], labels[first : first + size]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learn to read digits, driven by one client.")
    parser.add_argument(
        "target", nargs="?", help="host:port of any task (default: that of argosy run --serve)"
    )
    parser.add_argument("--asynchronous", action="store_true", help="apply each worker's gradients at once")
    parser.add_argument("--steps", type=int, default=500, help="updates of the parameters (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="digits in a worker's batch (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the model (%(default)s)")
    parser.add_argument("--save", help="a file for the parameters at the end")
    return parser.parse_args()


if __name__ == "__main__":
    main()
