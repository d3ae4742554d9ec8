"""Servers and workers killed with -9 under the launcher, which starts them again: nothing acknowledged is
lost. A synchronous job has the bits of one in which nobody dies; in an asynchronous one every shard counts
exactly the updates.
"""

from __future__ import annotations

import pytest
from jobs import Jobs, jobs
from restarted_jobs import COUNT, EXACT, SERVERS, TASKS, RestartedJob, fresh

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]
SYNC = ("--mode", "sync")
faults = pytest.mark.faults


def exact(jobs: Jobs, steps: int, kind: str, lane: str, words: tuple[object, ...] = SYNC) -> RestartedJob:
    return RestartedJob(jobs, EXACT, words, STEPS=str(steps), KIND=kind, ARGOSY_LANE=lane)


def undisturbed(jobs: Jobs, steps: int, kind: str, words: tuple[object, ...] = SYNC) -> set[str]:
    """What a run without deaths comes to, on any lane."""
    job = exact(fresh(jobs, "undisturbed"), steps, kind, "auto", words)
    job.hurry()
    return job.result()


def check_bits(jobs: Jobs, job: RestartedJob, expected: set[str]) -> None:
    found = job.result()
    assert found == expected, f"{expected}\n{job}"
    assert sum(text.startswith("done ") for text in found) == 1, job


# --- synchronous: the same bits -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seed", "kills", "kind", "lane"),
    [
        (1, 4, "", "auto"),
        pytest.param(2, 10, "", "auto", marks=faults),
        pytest.param(3, 10, "", "network", marks=faults),
        pytest.param(4, 10, "clip", "auto", marks=faults),
        pytest.param(5, 10, "clip", "network", marks=faults),
        pytest.param(6, 10, "directory", "auto", marks=faults),
        pytest.param(7, 10, "norm", "auto", marks=faults),
        pytest.param(8, 10, "norm", "network", marks=faults),
        pytest.param(9, 10, "average", "auto", marks=faults),
    ],
)
def test_random_kills_leave_the_bits_as_they_are(
    jobs: Jobs, seed: int, kills: int, kind: str, lane: str
) -> None:
    steps = 12 * kills
    expected = undisturbed(jobs, steps, kind)
    job = exact(fresh(jobs, "killed"), steps, kind, lane)
    job.kill_at_random(seed, kills)
    check_bits(jobs, job, expected)


# --- asynchronous: every shard counts -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seed", "kills", "lane", "words"),
    [
        (1, 3, "auto", ()),
        pytest.param(2, 10, "auto", (), marks=faults),
        pytest.param(3, 10, "network", (), marks=faults),
        pytest.param(4, 10, "auto", ("--max-staleness", 1), marks=faults),
        pytest.param(5, 10, "auto", ("--mode", "sync", "--aggregate", 2), marks=faults),
        pytest.param(6, 10, "network", ("--mode", "sync", "--aggregate", 2, "--late", "fold"), marks=faults),
        pytest.param(7, 10, "auto", ("--mode", "sync", "--aggregate", 4, "--tokens", 2), marks=faults),
        pytest.param(8, 10, "network", ("--mode", "sync", "--aggregate", 4, "--tokens", 2), marks=faults),
    ],
)
def test_random_kills_leave_every_shard_with_all_updates(
    jobs: Jobs, seed: int, kills: int, lane: str, words: tuple[object, ...]
) -> None:
    steps = 60 * kills
    job = RestartedJob(jobs, COUNT, words or ("--mode", "async"), STEPS=str(steps), ARGOSY_LANE=lane)
    job.kill_at_random(seed, kills, gap=15)
    assert job.result() == {f"done {steps} {steps} {steps}"}, job


# --- many at once, and at bad moments -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("victims", "lane"),
    [
        (SERVERS, "auto"),
        pytest.param(SERVERS, "network", marks=faults),
        pytest.param(TASKS[len(SERVERS) :], "auto", marks=faults),
    ],
)
def test_all_of_a_kind_at_once(jobs: Jobs, victims: tuple[str, ...], lane: str) -> None:
    expected = undisturbed(jobs, 40, "")
    job = exact(fresh(jobs, "killed"), 40, "", lane)
    job.until_step(9)
    job.kill(*victims)
    job.until_step(20)
    job.kill(*victims)
    job.until_back(*victims)
    job.hurry()
    check_bits(jobs, job, expected)
