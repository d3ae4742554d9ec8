"""MNIST, four processes by hand, started in an order that suits nobody."""

from __future__ import annotations

import re

import pytest
from jobs import MNIST, Jobs, jobs

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

STEP = r"\d+\.\d{6}: Worker 0: training step 100 done \(global step: (\d+)\), loss \d+\.\d+\n"
ELAPSED = r"Training elapsed time: \d+\.\d{6} s\n"
END = r"After (\d+) training step\(s\), validation cross entropy = \d+\.\d+, accuracy = (0\.\d+)\n"


@pytest.mark.parametrize(
    "flags",
    [pytest.param((), marks=pytest.mark.slow), ("--is_sync=True",)],
    ids=["async", "sync"],
)
def test_mnist_by_hand(jobs: Jobs, flags: tuple[str, ...]) -> None:
    cluster = jobs.cluster(2, 2)
    # Asynchronous updates are shared: worker 1 may come late, and get few of them or none.
    steps = "110" if flags else "500"
    cluster.start_all([MNIST, "--steps", steps, *flags], order=("worker1", "ps1", "worker0", "ps0"))
    assert set(cluster.wait().values()) == {0}, cluster
    results = []
    for name in ("worker0", "worker1"):
        text = cluster[name].out
        assert re.search(ELAPSED, text), cluster
        end = re.search(END, text)
        assert end, cluster
        results.append(end[0])
        assert end[1] == steps
    assert results[0] == results[1]
    said = [re.search(STEP.replace("Worker 0", f"Worker {n}"), cluster[f"worker{n}"].out) for n in (0, 1)]
    if flags:
        assert all(found and found[1] == "100" for found in said), cluster
    else:
        assert any(said), cluster
    for name in ("ps0", "ps1"):
        assert f"serves at {cluster.addresses['ps'][int(name[-1])]}; its peers: /job:" in cluster[name].err
        assert cluster[name].out == ""
