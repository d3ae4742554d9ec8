"""The ring as real processes: by the launcher, by hand, by torchrun; and what a death does to it."""

from __future__ import annotations

import time

import pytest
from jobs import Jobs, free_ports, jobs

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

UNEVEN = """
import torch, argosy
replica = argosy.join()
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
with replica.session(torch.nn.ParameterList([weight]), optimizer) as session:
    for _ in session.batches(iter(range(5 + 5 * replica.index))):
        optimizer.zero_grad()
        (weight * (replica.index + 1)).sum().backward()
        optimizer.step()
print(f"done {session.global_step} {weight.item()}", flush=True)
"""


def test_the_launcher_starts_a_ring_without_servers(jobs: Jobs) -> None:
    job = jobs.launch("ring", 20, 0, workers=3)
    assert job.wait() == 0, job
    for worker in range(3):
        assert "done 20 -40.0 -40.0" in job.lines(f"/job:worker/task:{worker}"), job
    assert "argosy: ring of 3: shared memory" in job.lines("/job:worker/task:0"), job


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_worker_is_named_by_all_the_others_within_seconds(jobs: Jobs, victim: int) -> None:
    job = jobs.launch("ring", 100_000, 0.01, workers=3)
    for worker in range(3):
        job.until(f"/job:worker/task:{worker}", "step ")
    began = time.monotonic()
    job.kill(f"/job:worker/task:{victim}")
    assert job.wait() == 128 + 9, job
    assert time.monotonic() - began < 15
    for worker in {0, 1, 2} - {victim}:
        errors = [line for line in job.lines(f"/job:worker/task:{worker}") if "argosy: error: " in line]
        assert len(errors) == 1, job
        assert f"lost /job:worker/task:{victim}: its process has ended" in errors[0], job


def test_an_error_in_one_worker_ends_all_and_is_the_first_cause(jobs: Jobs) -> None:
    job = jobs.launch("ring", 1000, 0, workers=3, FAIL_AT="3")
    assert job.wait() == 1, job
    for worker in (0, 2):
        heard = "argosy: error: the job was ended by /job:worker/task:1: ValueError: boom"
        assert heard in job.lines(f"/job:worker/task:{worker}"), job
    assert "ValueError: boom" in job.launcher.err.rstrip().splitlines()[-1], job


@pytest.mark.slow
def test_by_hand_in_any_order(jobs: Jobs) -> None:
    cluster = jobs.cluster(0, 2)
    command = [jobs.script(), 10, 0]
    late = cluster.start("worker", 1, command)
    late.until("still waiting for /job:worker/task:0 at localhost")
    cluster.start("worker", 0, command)
    assert cluster.wait() == {"worker0": 0, "worker1": 0}, cluster
    assert all("done 10 -15.0 -15.0" in task.out for task in cluster.tasks.values()), cluster


def test_who_never_comes_is_named(jobs: Jobs) -> None:
    alone = jobs.cluster(0, 2).start("worker", 0, [jobs.script(), 10, 0, "--wait=2"])
    assert alone.wait() == 1
    assert "argosy: error: the ring is not complete after 2 s; missing /job:worker/task:1" in alone.err


@pytest.mark.slow
def test_a_worker_that_runs_out_of_data_leaves(jobs: Jobs) -> None:
    cluster = jobs.cluster(0, 2)
    cluster.start_all([jobs.script(UNEVEN)])
    assert cluster.wait() == {"worker0": 0, "worker1": 0}, cluster
    assert "done 5 -7.5" in cluster["worker0"].out
    assert "done 10 -17.5" in cluster["worker1"].out


def test_off_loopback_it_has_to_be_asked_for(jobs: Jobs) -> None:
    (port,) = free_ports(1)
    flags = [f"--worker_hosts=0.0.0.0:{port},localhost:1", "--job_name=worker", "--task_index=0"]
    task = jobs.start("worker0", [jobs.script(), 1, 0, *flags])
    assert task.wait() == 2
    assert "add --insecure" in task.err


@pytest.mark.slow
def test_torchrun(jobs: Jobs) -> None:
    (port,) = free_ports(1)
    words = [
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        2,
        "--master-port",
        port,
        jobs.script(),
        10,
        0,
    ]
    task = jobs.start("torchrun", words)
    assert task.wait() == 0, task
    assert task.out.count("done 10 -15.0 -15.0") == 2, task
