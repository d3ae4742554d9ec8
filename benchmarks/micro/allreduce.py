"""One rank of an all-reduce: ours and Gloo's in turns, in the same processes, on the same numbers.

Started once a rank by `benchmarks/allreduces.py`. Each turn begins with a barrier of ours, so that all ranks
begin together; the time is that of the first rank.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist

import argosy.ring  # noqa: F401  (makes the backend known)
from benchmarks.contenders.job import end_with_parent, write_whole

WARMUP = 3


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--floats", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "argosy", init_method=f"file://{args.out}/store", rank=args.index, world_size=args.count
    )
    groups = {"argosy": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    numbers = torch.ones(args.floats)
    taken: dict[str, list[float]] = {name: [] for name in groups}
    for turn in range(args.repeats + WARMUP):
        for name, group in groups.items():
            numbers.fill_(1.0)
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(numbers, group=group)
            if turn >= WARMUP:
                taken[name].append(time.perf_counter() - begin)
    if float(numbers[-1]) != args.count:
        raise ValueError(f"a sum of {args.count} ones, got {float(numbers[-1])}")
    write_whole(args.out / f"worker-{args.index}.json", taken)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
