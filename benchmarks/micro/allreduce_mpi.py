"""The same all-reduce by Open MPI, through mpi4py; started by `mpirun` in the peers' environment."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--floats", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    ranks = MPI.COMM_WORLD
    numbers = np.ones(args.floats, dtype=np.float32)
    taken = []
    for turn in range(args.repeats + args.warmup):
        numbers.fill(1.0)
        ranks.Barrier()
        begin = time.perf_counter()
        ranks.Allreduce(MPI.IN_PLACE, numbers)
        if turn >= args.warmup:
            taken.append(time.perf_counter() - begin)
    if ranks.rank == 0:
        part = args.out / "mpi.part"
        part.write_text(json.dumps({"openmpi": taken}))
        part.rename(args.out / "mpi.json")


if __name__ == "__main__":
    main()
