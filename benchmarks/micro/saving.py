"""What saving costs: steps with a save every 100 of them against steps without, in turns, in one job.

Also what a cut takes from a server: the copy of its shard, against two plain copies of the same bytes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import argosy
from argosy.protocol.fields import Group
from argosy.protocol.joining import OptimizerSpec
from argosy.protocol.layout import Layout, ParameterSpec, Share, extend
from argosy.server.shard import Shard
from argosy.server.snapshot import Snapshot
from benchmarks.contenders.job import read_job, write_whole
from benchmarks.contenders.torch_model import Batches, build
from benchmarks.networks import LEARNING_RATE

BLOCK = 300
SAVE_EVERY = 100
# After a block the disk may still be busy with its last save: these steps belong to neither.
BETWEEN = 60
ADAM: Group = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "amsgrad": False,
    "maximize": False,
}


def time_cuts(floats: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of the copy at a cut, and of two plain copies of the same bytes, in turns."""
    spec = ParameterSpec("w", (floats,), "float32")
    layout = extend(Layout(), [spec], [[Share(0, 0, floats)]])
    shard, snapshot = Shard(0), Snapshot()
    blocks = [torch.zeros(layout.blocks[number].count) for number in layout.blocks_of(0)]
    shard.extend(layout, OptimizerSpec("Adam", (ADAM,)), blocks)
    snapshot.prepare(shard)
    kept = 3 * floats
    source, target = torch.zeros(kept), torch.zeros(kept)
    taken: dict[str, list[float]] = {"cut": [], "copies": []}
    for _ in range(repeats):
        begin = time.perf_counter()
        snapshot.take(shard)
        middle = time.perf_counter()
        target.copy_(source)
        target.copy_(source)
        end = time.perf_counter()
        taken["cut"].append(middle - begin)
        taken["copies"].append(end - middle)
    return taken


def main() -> None:
    replica = argosy.join()
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    args, sys.argv[1:] = parser.parse_known_args()
    job = read_job()
    torch.set_num_threads(1)
    model = build(job.network)
    optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True))
    length = BLOCK + BETWEEN
    rates: dict[str, list[float]] = {"with": [], "without": []}
    with replica.session(model, optimizer, directory=args.directory, save_seconds=1e9) as session:
        begin = 0.0
        batches = session.batches(Batches(job.network, job.data, replica.index))
        for step, (inputs, labels) in enumerate(batches):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
            if not replica.is_chief:
                continue
            number, at = divmod(step, length)
            # The first block warms up; then the order of a pair changes from pair to pair.
            saves = number > 0 and ((number - 1) % 2 == 0) == (((number - 1) // 2) % 2 == 0)
            if at == BETWEEN - 1:
                begin = time.perf_counter()
            if saves and at >= BETWEEN - 1 and (at - BETWEEN + 1) % SAVE_EVERY == 0 and at < length - 1:
                session.save()
            if at == length - 1 and number > 0:
                rates["with" if saves else "without"].append(BLOCK / (time.perf_counter() - begin))
            if number == 2 * args.pairs and at == length - 1:
                session.stop()
    if replica.is_chief:
        sizes = {"shard": 324_005, "wide": 12_500_000}
        cuts = {name: time_cuts(floats, 30) for name, floats in sizes.items()}
        write_whole(job.out / "worker-0.json", {"rates": rates, "cuts": cuts})


if __name__ == "__main__":
    main()
