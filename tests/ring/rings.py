"""Rings for the tests of this folder: ranks in threads, with memory and boards of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch.distributed import HashStore

from argosy.ring.group import Membership, RingGroup
from threads import in_threads

T = TypeVar("T")


def in_group(size: int, program: Callable[[RingGroup], T]) -> list[T]:
    """What `program` makes of a group on one host, by rank."""
    store = HashStore()
    names = tuple(f"/job:worker/task:{rank}" for rank in range(size))

    def run(rank: int) -> T:
        group = RingGroup(store, Membership(rank, names, timeout=30))
        try:
            return program(group)
        finally:
            group.close()

    return in_threads(size, run)
