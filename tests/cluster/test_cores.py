"""Tasks of one machine share its cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from argosy.cluster.cores import fair_share, obey_threads, share_cores
from argosy.cluster.spec import ClusterSpec, Task

LOCAL = ClusterSpec(
    {"ps": ["localhost:1", "127.0.0.1:2"], "worker": ["localhost:3", "localhost:4", "localhost:5"]}
)
SPREAD = ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["A:2", "c:1"]})
CHIEF = Task("worker", 0)


@pytest.mark.parametrize(
    ("cluster", "task", "cores", "expected"),
    [
        (LOCAL, CHIEF, 16, 3),
        (LOCAL, CHIEF, 2, 1),
        (LOCAL, Task("evaluator", 0), 16, None),
        (SPREAD, Task("ps", 0), 16, 8),
        (SPREAD, Task("ps", 1), 16, None),
        (SPREAD, Task("worker", 1), 2, None),
    ],
)
def test_share(cluster: ClusterSpec, task: Task, cores: int, expected: int | None) -> None:
    assert fair_share(cluster, task, cores) == expected


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_torch_keeps_to_the_share_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    share_cores(LOCAL, CHIEF, {"OMP_NUM_THREADS": "2"})
    assert torch.get_num_threads() == 2
    share_cores(SPREAD, Task("worker", 1), {})
    assert torch.get_num_threads() == 2
    share_cores(LOCAL, CHIEF, {})
    assert torch.get_num_threads() == 1


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("told", "threads"), [("3", 3), (" 1,4", 1), ("", 2), ("0", 2), ("many", 2)])
def test_torch_uses_as_many_threads_as_it_is_told(told: str, threads: int) -> None:
    obey_threads({"OMP_NUM_THREADS": told})
    assert torch.get_num_threads() == threads
