"""Which rows a worker's loader gives, by the pages: every epoch's order is dealt to the replicas in turn, and
a resumed training goes on where it was. Plain arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence

from programs import Program


def batches_of(order: Sequence[int], batch: int, worker: int, count: int) -> list[list[int]]:
    """A worker's batches of one epoch."""
    share = list(order)[worker::count]
    return [share[at : at + batch] for at in range(0, len(share), batch)]


def dealt(program: Program, orders: Sequence[Sequence[int]], phase: int, worker: int) -> list[list[int]]:
    """All batches of a worker in a phase, from where the phase before has ended."""
    feed = program.feed
    assert feed is not None
    counts = [each.workers for each in program.phases]
    skipped, epoch = 0, 0
    for number in range(phase):  # how far all workers came together
        done = len(program.phases[number].turns)
        each = len(batches_of(orders[0], feed.batch, 0, counts[number]))
        epoch, place = divmod(skipped + done + epoch * each, each)
        skipped = place * counts[number] // counts[number + 1]
    found = []
    for at in range(epoch, sum(feed.calls)):
        batches = batches_of(orders[at], feed.batch, worker, counts[phase])
        found += batches[skipped if at == epoch else 0 :]
    return found
