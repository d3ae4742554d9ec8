"""A worker that pushes and pulls without a network: only the exchange itself costs anything.

Started by `argosy run`, any number of workers and servers. Plain SGD, the cheapest update there is. Alone,
the worker also makes two plain copies of the same bytes after each exchange, for comparison.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn

import argosy
from benchmarks.contenders.job import write_whole

# Equal pieces, so that every number of servers can share them evenly.
PIECES = 8


def equal_parameters(floats: int) -> list[nn.Parameter]:
    """So many numbers in equal pieces, each with a gradient that stays."""
    parameters = [nn.Parameter(torch.zeros(max(1, floats // PIECES))) for _ in range(PIECES)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    return parameters


class PlainCopies:
    """The same bytes there and back, in this process."""

    def __init__(self, floats: int) -> None:
        self._tensors = [torch.full((floats,), float(number)) for number in range(4)]

    def time(self) -> float:
        """Seconds for both copies."""
        begin = time.perf_counter()
        self._tensors[0].copy_(self._tensors[1])
        self._tensors[2].copy_(self._tensors[3])
        return time.perf_counter() - begin


def main() -> None:
    replica = argosy.join()
    parser = argparse.ArgumentParser()
    parser.add_argument("--floats", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--least", type=int, default=10, help="exchanges at least, however long they take")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    parameters = equal_parameters(args.floats)
    optimizer = replica.distribute(torch.optim.SGD(parameters, lr=1e-3))
    copies = PlainCopies(args.floats) if replica.count == 1 else None
    stamps: list[float] = []
    costs: list[float] = []
    plain: list[float] = []
    with replica.session(nn.ParameterList(parameters), optimizer):
        optimizer.step()
        replica.barrier()
        begin = time.monotonic()
        while len(costs) < args.least or time.monotonic() - begin < args.seconds:
            before = time.monotonic()
            optimizer.step()
            stamps.append(time.monotonic())
            costs.append(stamps[-1] - before)
            if copies is not None:
                plain.append(copies.time())
        result = {"stamps": stamps, "costs": costs, "plain": plain}
        write_whole(args.out / f"worker-{replica.index}.json", result)


if __name__ == "__main__":
    main()
