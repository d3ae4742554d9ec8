"""Ranks of a ring, or workers, as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def in_threads(size: int, program: Callable[[int], T], errors: list[BaseException] | None = None) -> list[T]:
    """What `program(rank)` returns, by rank; raises the first error.

    `errors`: where a program that makes others fail notes why, before they do.
    """
    torch.set_num_threads(1)
    results: dict[int, T] = {}
    raised = [] if errors is None else errors

    def run(rank: int) -> None:
        try:
            results[rank] = program(rank)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), raised
    if raised:
        raise raised[0]
    return [results[rank] for rank in range(size)]
