"""One worker of two on two hosts: a whole step of the ring, an all-reduce on our backend, and one on Gloo.

In turns, in the same processes: what passes over the network is the same bytes each time. A step takes a
gradient that is there already, averages it and lets the optimizer step; nothing is left to overlap it with.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import argosy
import argosy.ring
from benchmarks.contenders.job import end_with_parent, write_whole

WARMUP = 1
STORE = "tcp://10.77.0.1:15003"


def main() -> None:
    end_with_parent()
    replica = argosy.join()
    parser = argparse.ArgumentParser()
    parser.add_argument("--floats", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=STORE, rank=replica.index, world_size=replica.count)
    ours = dist.new_group(backend="argosy")
    weight = nn.Parameter(torch.zeros(args.floats))
    optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
    numbers = torch.ones(args.floats)
    ways: dict[str, Callable[[], object]] = {
        "a whole step": optimizer.step,
        "all-reduce": lambda: dist.all_reduce(numbers, group=ours),
        "all-reduce by Gloo alone": lambda: dist.all_reduce(numbers),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    with replica.session(nn.ParameterList([weight]), optimizer):
        for turn in range(args.repeats + WARMUP):
            for name, way in ways.items():
                numbers.fill_(1.0)
                weight.grad = torch.ones_like(weight)
                dist.barrier()
                begin = time.perf_counter()
                way()
                if turn >= WARMUP:
                    taken[name].append(time.perf_counter() - begin)
    write_whole(args.out / f"worker-{replica.index}.json", taken)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
