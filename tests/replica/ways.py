"""A program in every way of working together, for the tests of this folder: alone, in a ring, on servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from ring_trainings import in_ring

from argosy.cluster.discover import discover
from argosy.entry import Replica
from argosy.modes import Mode, Sync
from argosy.testing import LocalCluster

Way = Literal["alone", "ring", "queue", "memory"]
WAYS: list[Way] = ["alone", "ring", "queue", "memory"]
T = TypeVar("T")


def run(way: Way, program: Callable[[Replica], T], workers: int = 2, mode: Mode | None = None) -> list[T]:
    """What each worker returns; the last two ways are two servers over the network, and on one host."""
    if way == "alone":
        return [program(Replica(discover({}, {}), None))]
    if way == "ring":
        return in_ring(workers, program)
    return LocalCluster(2, workers, Sync() if mode is None else mode, lane=way).run(program)
