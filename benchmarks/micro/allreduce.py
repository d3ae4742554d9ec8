"""One rank of an all-reduce, on our backend or on Gloo.

Started once a rank by `benchmarks/allreduces.py`, each way in processes of its own: Gloo's threads and what
it leaves in the caches are not ours to carry. Each turn begins with a barrier; the time is the first rank's.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist

import argosy.ring  # noqa: F401  (makes the backend known)
from benchmarks.contenders.job import end_with_parent, write_whole


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=["argosy", "gloo"], required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--floats", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        args.way, init_method=f"file://{args.out}/store", rank=args.index, world_size=args.count
    )
    numbers = torch.ones(args.floats)
    taken = []
    for turn in range(args.repeats + args.warmup):
        numbers.fill_(1.0)
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(numbers)
        if turn >= args.warmup:
            taken.append(time.perf_counter() - begin)
    if float(numbers[-1]) != args.count:
        raise ValueError(f"a sum of {args.count} ones, got {float(numbers[-1])}")
    write_whole(args.out / f"worker-{args.index}.json", {args.way: taken})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
