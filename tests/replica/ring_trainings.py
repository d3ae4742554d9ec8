"""Trainings in a ring for the tests of this folder: workers in threads, all the rest as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch._C._distributed_c10d import HashStore
from trainings import Case, State, train_one

from argosy.cluster.discover import Identity
from argosy.cluster.spec import ClusterSpec, Task
from argosy.modes import Ring
from argosy.replica.replica import Replica
from argosy.ring.group import Membership
from argosy.ring.member import RingMember

T = TypeVar("T")


def in_ring(workers: int, program: Callable[[Replica], T], wait: float = 20.0) -> list[T]:
    """What each worker returns; raises what was raised first."""
    torch.set_num_threads(1)
    store = HashStore()
    cluster = ClusterSpec({"worker": [f"localhost:{1 + index}" for index in range(workers)]})
    names = tuple(str(task) for task in cluster.tasks("worker"))
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            member = RingMember(store, Membership(index, names, wait))
            replica = Replica(Identity(cluster, Task("worker", index), Ring()), None, member)
            try:
                results[index] = program(replica)
            except BaseException as error:
                errors.append(error)
                replica.fail(error)
            member.leave()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), errors
    if errors:
        raise errors[0]
    return [results[index] for index in range(workers)]


def train_ring(case: Case, workers: int) -> list[State]:
    """The state of the model on every worker; each starts from a seed of its own."""
    models = [case.make(seed) for seed in range(workers)]
    return in_ring(workers, lambda replica: train_one(case, replica, models[replica.index]))
