"""Learn to read handwritten digits: an ordinary PyTorch loop that also trains on a cluster.

    python examples/mnist.py                                       alone
    argosy run --ps 2 --workers 2 examples/mnist.py                2 servers, 2 workers, asynchronous
    argosy run --ps 2 --workers 2 --mode sync examples/mnist.py    the same, in step
    argosy run examples/mnist.py --directory runs/mnist            saves, and goes on when started again

A platform that starts each task itself adds --job_name, --task_index, --ps_hosts and --worker_hosts; `join`
takes them out of the command line. `argosy demo` runs this very file: argosy/demo.py is a link to it.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import argosy
from argosy.datasets import mnist


class Net(nn.Sequential):
    """784-500-500-10: two hidden layers, 648,010 parameters."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 10))


def main() -> None:
    replica = argosy.join()  # a server stays in here until the job is done; a worker goes on
    args = arguments()
    digits = mnist.load(args.data)

    torch.manual_seed(args.seed)  # the same model everywhere ...
    model = Net()
    optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=args.lr))
    # ... and of the digits a share that is this worker's own, in a new order each epoch
    shown = TensorDataset(digits.train_images, digits.train_labels)
    loader = replica.loader(shown, args.batch, args.seed, drop_last=True)

    def judge(model: nn.Module) -> dict[str, float]:
        entropy, accuracy = evaluate(model, digits.test_images, digits.test_labels)
        return {"cross entropy": entropy, "accuracy": accuracy}

    with replica.session(
        model,
        optimizer,
        last_step=args.steps,
        directory=args.directory,
        save_every=None if args.directory is None else args.save_every,
        evaluate=judge,  # in an evaluator task, of every checkpoint
    ) as session:
        begin = time.time()
        for step, (images, labels) in enumerate(session.batches(loader), start=1):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
            if step % 100 == 0:
                done = f"training step {step} done (global step: {session.global_step}), loss {loss:.4f}"
                print(f"{time.time():.6f}: Worker {replica.index}: {done}", flush=True)
        print(f"Training elapsed time: {time.time() - begin:.6f} s", flush=True)

    cross_entropy, accuracy = evaluate(model, digits.test_images, digits.test_labels)
    print(
        f"After {session.global_step} training step(s), "
        f"validation cross entropy = {cross_entropy:.6g}, accuracy = {accuracy:.4f}",
        flush=True,
    )


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """The mean cross entropy, and the share of the digits that are read right."""
    model.eval()
    logits = model(images)
    right = logits.argmax(dim=1) == labels
    return F.cross_entropy(logits, labels).item(), right.float().mean().item()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learn to read handwritten digits, alone or on a cluster.")
    parser.add_argument("--steps", type=int, default=10_000, help="global steps to train (%(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="digits in a worker's batch (%(default)s)")
    parser.add_argument("--lr", type=float, default=1e-4, help="Adam's learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the model and the shuffling (%(default)s)")
    parser.add_argument("--directory", type=Path, help="keep checkpoints here, and go on from the newest")
    parser.add_argument("--save-every", type=int, default=1000, help="steps between two (%(default)s)")
    parser.add_argument("--data", type=Path, help="a folder of MNIST files (default: the digits that ship)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
