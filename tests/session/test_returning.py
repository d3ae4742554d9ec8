"""A worker that was lost and is started again takes its place; one that is started twice does not."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from argosy.entry import Replica
from argosy.errors import ConfigError
from argosy.modes import Async, Mode, Sync
from argosy.testing import LocalCluster


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("mode", [Async(), Sync()], ids=str)
def test_a_lost_worker_comes_back(mode: Mode, servers: int) -> None:
    cluster = LocalCluster(servers, 2, mode)
    back = threading.Event()

    def train(replica: Replica, die_at: int | None) -> int:
        model = nn.Linear(3, 1)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer, last_step=40) as session:
            for number in session.batches(range(1000)):
                if number == die_at:
                    cluster.kill(replica.index)
                if replica.index == 0 and session.global_step == 20:
                    assert back.wait(10.0)  # the one that died has been lost by now, and has come back
                optimizer.zero_grad()
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        return session.global_step

    def again(replica: Replica) -> int:
        back.set()
        return train(replica, None)

    cluster.start(0, lambda replica: train(replica, None))
    first = threading.Event()

    def mortal(replica: Replica) -> int:
        try:
            return train(replica, 5)
        finally:
            first.set()

    cluster.start(1, mortal)
    assert first.wait(10.0)
    first.clear()
    assert not first.wait(0.5)  # longer than the grace: its place is free now
    cluster.start(1, again)
    outcome = cluster.finish()
    assert not outcome.errors
    assert outcome.results == {0: 40, 1: 40}


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("mode", [Async(), Sync()], ids=str)
def test_a_second_copy_of_a_worker_is_refused_and_changes_nothing(mode: Mode, servers: int) -> None:
    cluster = LocalCluster(servers, 2, mode)
    training, refused = threading.Barrier(3), threading.Event()

    def program(replica: Replica) -> int:
        model = nn.Linear(3, 1)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer, last_step=20) as session:
            training.wait(10.0)
            assert refused.wait(10.0)
            for _ in session.batches(range(1000)):
                optimizer.zero_grad()
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
        return session.global_step

    for worker in (0, 1):
        cluster.start(worker, program)
    training.wait(10.0)
    cluster.start(1, program)
    while "/job:worker/task:1" not in cluster.outcome.errors:
        assert not refused.wait(0.01)
    refused.set()
    outcome = cluster.finish()
    assert outcome.results == {0: 20, 1: 20}
    (error,) = outcome.errors.values()
    assert isinstance(error, ConfigError)
    assert "/job:worker/task:1 is taken by a running process" in str(error)
