"""How many tasks a machine holds: what limits them is named."""

from __future__ import annotations

import math

import pytest

from argosy.errors import ConfigError
from argosy.launch.capacity import check_room, most_tasks


@pytest.mark.parametrize(
    ("files", "threads", "memory", "most", "why"),
    [
        (1064, math.inf, math.inf, 200, "the launcher may open 1064 files: see `ulimit -n`"),
        (1e9, 400, math.inf, 100, "there may be 400 processes and threads"),
        (1e9, 1e9, 8 * 2**30, 256, "8.6 GB of memory are free, and a task takes 32 MB or more"),
        (10, 1e9, 1e12, 1, "the launcher may open 10 files: see `ulimit -n`"),  # one may always be tried
    ],
)
def test_what_there_is_least_of(files: float, threads: float, memory: float, most: int, why: str) -> None:
    assert most_tasks(files, threads, memory) == (most, why)


def test_a_few_tasks_are_never_refused_and_millions_always() -> None:
    check_room(4)
    with pytest.raises(
        ConfigError, match=r"--ps and --workers: expected at most \d+ tasks on this machine \("
    ):
        check_room(10**7)
