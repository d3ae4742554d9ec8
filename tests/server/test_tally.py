"""What the coordinator counts, and what it answers to whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from argosy.entry import Replica
from argosy.modes import Async, Mode, Sync
from argosy.protocol.asking import JobStatus
from argosy.protocol.decisions import Answer, Apply, Forget, Part
from argosy.server.tally import Tally
from argosy.testing import LocalCluster


def test_counts_follow_from_decisions() -> None:
    tally = Tally(2)
    tally.count(
        [
            Apply(1, (Part(0, 1), Part(1, 1))),
            Answer(0, 1, "applied", 1, 2),
            Forget(1, 2),
            Answer(1, 2, "dropped", 1, 7),
        ]
    )
    tally.count([Answer(1, 3, "folded", 1, 3), Answer(1, 4, "skipped", 1), Answer(0, 5, "pulled", 1)])
    tally.log(0, {"loss": 0.5}, 1)
    tally.heard(1)
    first, second = (tally.status(worker, f"w{worker}", "in the job") for worker in range(2))
    assert (first.applied, first.dropped, first.staleness, first.mean_staleness) == (1, 0, 2, 2.0)
    assert (first.heard, first.numbers, first.logged) == (None, {"loss": 0.5}, 1)
    assert (second.applied, second.dropped, second.folded, second.skipped) == (1, 1, 1, 1)
    assert (second.staleness, second.total_staleness) == (3, 3)  # a dropped one is in no parameter
    assert second.heard is not None
    assert tally.status(0, "w0", "").mean_staleness == 2.0
    assert Tally(1).status(0, "w0", "").mean_staleness == 0.0


@contextmanager
def asking(replica: Replica) -> Iterator[Any]:
    inquirer = replica.inquire()
    assert inquirer is not None
    try:
        yield inquirer
    finally:
        inquirer.close()


def watched(mode: Mode, steps: int = 6) -> list[JobStatus]:
    """A job of 2 servers and 2 workers; how it stood when the workers had made their last step."""

    def program(replica: Replica) -> JobStatus:
        model = torch.nn.Linear(2, 1)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with asking(replica) as inquirer, replica.session(model, optimizer, last_step=1000) as session:
            for step in range(steps):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                if step == 2 and replica.index == 1:
                    optimizer.skip()
                else:
                    optimizer.step()
                session.log(loss=torch.tensor(0.5 + replica.index))
            replica.barrier()
            found: JobStatus = inquirer.ask(5.0)
            replica.barrier()
        return found

    results: list[JobStatus] = LocalCluster(servers=2, workers=2, mode=mode).run(program)
    return results


def test_the_coordinator_tells_what_it_counted() -> None:
    for status in watched(Sync()):
        assert (status.step, status.last_step, status.queue) == (6, 1000, 0)
        assert [w.task for w in status.workers] == ["/job:worker/task:0", "/job:worker/task:1"]
        assert [(w.applied, w.skipped, w.dropped) for w in status.workers] == [(6, 0, 0), (5, 1, 0)]
        assert all(w.presence == "in the job" for w in status.workers)
        assert all(w.heard is not None and w.heard < 10 for w in status.workers)
        assert status.mode == str(Sync())
        # The first numbers travel at once: a second has not passed since, so they are still the latest.
        assert [w.numbers for w in status.workers] == [{"loss": 0.5}, {"loss": 1.5}]


def test_staleness_is_counted_in_asynchronous_mode() -> None:
    for status in watched(Async()):
        assert status.step == 11
        assert sum(w.applied for w in status.workers) == 11
        assert all(w.total_staleness >= w.staleness >= 0 for w in status.workers)


def test_the_last_numbers_come_with_the_end() -> None:
    seen = []

    def program(replica: Replica) -> None:
        model = torch.nn.Linear(2, 1)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        if replica.index == 1:
            with asking(replica) as inquirer:
                replica.barrier()
                seen.append(inquirer.ask(5.0).workers[0])
            with replica.session(model, optimizer, last_step=3):
                pass
            return
        with replica.session(model, optimizer, last_step=3) as session:
            for step, _ in enumerate(session.batches(range(9))):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                session.log(loss=float(step))

    def chief_meets_after_the_end(replica: Replica) -> None:
        if replica.index == 0:
            leave, replica.leave = replica.leave, lambda: None  # type: ignore[method-assign]
            program(replica)
            replica.barrier()
            leave()
        else:
            program(replica)

    LocalCluster(servers=1, workers=2).run(chief_meets_after_the_end)
    assert seen[0].numbers == {"loss": 2.0}
