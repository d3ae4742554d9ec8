"""An exchange of 25 M parameters against plain copies of the same bytes, one after the other in one process.

`--what bare`: without the update. Two workers, Sync(aggregate=1, late="drop"): worker 1 makes a step, then
worker 0 brings a gradient for the step that is over. It is carried to the server and dropped there, and fresh
parameters come back: a whole push and pull, through the public API, and nothing is applied.
`--what adam`: one worker, asynchronous, against the two copies with fused Adam between them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn

import argosy
from benchmarks.contenders.job import write_whole
from benchmarks.micro.exchange import PlainCopies, equal_parameters
from benchmarks.networks import LEARNING_RATE

WARM_UP = 3


class CopiesAndUpdate:
    """What a server does for one worker, in this process: take the gradient, update, give the parameters."""

    def __init__(self, floats: int) -> None:
        self._gradient, self._slot, self._fresh = (torch.full((floats,), 1e-3) for _ in range(3))
        self._parameters = torch.zeros(floats, requires_grad=True)
        self._parameters.grad = self._slot
        self._optimizer = torch.optim.Adam([self._parameters], lr=LEARNING_RATE, fused=True)

    def time(self) -> float:
        """Seconds for all three."""
        begin = time.perf_counter()
        self._slot.copy_(self._gradient)
        self._optimizer.step()
        self._fresh.copy_(self._parameters.detach())
        return time.perf_counter() - begin


def main() -> None:
    replica = argosy.join()
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=["bare", "adam"], required=True)
    parser.add_argument("--floats", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    parameters = equal_parameters(args.floats)
    if args.what == "bare":
        inner: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=1e-3)
    else:
        inner = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)
    optimizer = replica.distribute(inner)
    is_measured = replica.index == 0
    plain = (PlainCopies if args.what == "bare" else CopiesAndUpdate)(args.floats) if is_measured else None
    expected = "dropped" if args.what == "bare" else "applied"
    costs: list[float] = []
    copies: list[float] = []
    with replica.session(nn.ParameterList(parameters), optimizer):
        for repeat in range(WARM_UP + args.repeats):
            if not is_measured:
                optimizer.step()
            replica.barrier()
            if plain is not None:
                before = time.perf_counter()
                verdict = optimizer.step()
                cost = time.perf_counter() - before
                if verdict.status != expected:
                    raise RuntimeError(f"the gradient was {verdict.status}; expected: {expected}")
                copied = plain.time()
                if repeat >= WARM_UP:
                    costs.append(cost)
                    copies.append(copied)
            replica.barrier()
    if is_measured:
        write_whole(args.out / "worker-0.json", {"costs": costs, "plain": copies})


if __name__ == "__main__":
    main()
