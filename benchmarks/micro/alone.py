"""A cluster of one against the plain PyTorch loop: blocks of steps, in turns, in one process.

Blocks of a fraction of a second, in turns, so that what slows the machine for longer slows both. Each process
gives one pair; the harness starts many. A busy machine still spoils the ratio.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F

import argosy
from benchmarks.contenders.job import Job, read_job, write_whole
from benchmarks.contenders.torch_model import Batches, build
from benchmarks.networks import LEARNING_RATE

BLOCK = 50


def plain_loop(job: Job) -> Iterator[float]:
    """Seconds of a block of steps, again and again."""
    model = build(job.network)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    begin = time.perf_counter()
    for step, (inputs, labels) in enumerate(Batches(job.network, job.data, 0).forever(), start=1):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        if step % BLOCK == 0:
            yield time.perf_counter() - begin
            begin = time.perf_counter()


def argosy_loop(job: Job, replica: argosy.Replica) -> Iterator[float]:
    """The same, with Argosy's three lines."""
    model = build(job.network)
    optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True))
    with replica.session(model, optimizer) as session:
        begin = time.perf_counter()
        for step, (inputs, labels) in enumerate(session.batches(Batches(job.network, job.data, 0)), start=1):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            session.log(loss=loss)
            if step % BLOCK == 0:
                yield time.perf_counter() - begin
                begin = time.perf_counter()


def main() -> None:
    replica = argosy.join()
    job = read_job()
    torch.set_num_threads(1)
    loops = {"plain": plain_loop(job), "argosy": argosy_loop(job, replica)}
    blocks: dict[str, list[float]] = {name: [] for name in loops}
    # Who is made first, and goes first, changes from process to process and from turn to turn.
    order = list(loops) if job.index % 2 else list(reversed(loops))
    for name in order:
        next(loops[name])  # warm-up
    began = time.monotonic()
    while time.monotonic() - began < job.seconds:
        for name in order:
            next(loops[name])  # the caches are the other loop's still
            blocks[name].append(next(loops[name]))
        order.reverse()
    rates = {name: [BLOCK / seconds for seconds in taken] for name, taken in blocks.items()}
    write_whole(job.out / "worker-0.json", rates)


if __name__ == "__main__":
    main()
