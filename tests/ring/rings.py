"""Rings for the tests of this folder: ranks in threads, with memory and boards of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch._C._distributed_c10d import HashStore

from argosy.ring.group import Membership, RingGroup

T = TypeVar("T")


def in_threads(size: int, program: Callable[[int], T]) -> list[T]:
    """What `program(rank)` returns, by rank; raises the first error."""
    torch.set_num_threads(1)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = program(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), errors
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(size)]


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
