"""What goes wrong on a task: who is told of it, how often, and what stays right beside it."""

from __future__ import annotations

import pytest
import torch
from clusters import cluster_here

import argosy
from argosy.errors import RemoteError
from argosy.remote.faults import Faults

FIRST, SECOND = "/job:worker/task:0", "/job:worker/task:1"


def pick(index: int, device: str = FIRST) -> torch.Tensor:
    """An element of a table of four; what does not exist fails on the task."""
    table = argosy.place(torch.arange(4.0), device)
    return torch.index_select(table, 0, argosy.place(torch.tensor([index]), device))


# --- who is told, and how often ---------------------------------------------------------------------------
def test_an_error_that_was_seen_is_not_raised_at_the_end() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20) as client:
        wrong = pick(9)
        with pytest.raises(RemoteError, match="index_select"):
            wrong.item()
        client.synchronize()
        with pytest.raises(RemoteError, match="index_select"):
            (wrong + 1).item()  # what depends on it has no value, now as before


def test_an_error_that_was_seen_on_another_task_is_not_raised_at_the_end() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20):
        wrong = pick(9, FIRST)
        with argosy.device(SECOND):
            further = wrong + 1
        with pytest.raises(RemoteError, match=FIRST):
            further.item()


def test_each_error_that_nobody_has_seen_is_raised_once() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20) as client:
        seen, first, second, third = pick(10), pick(11), pick(12), pick(13, SECOND)
        with pytest.raises(RemoteError):
            seen.item()
        for _ in (first, second, third):
            with pytest.raises(RemoteError, match="index_select"):
                client.synchronize()
        client.synchronize()


def test_an_error_that_nobody_has_seen_is_raised_at_the_end_after_others_that_were() -> None:
    def program(target: str) -> None:
        with argosy.connect(target, wait=20):
            with pytest.raises(RemoteError, match="index_select"):
                pick(9).item()
            torch.gather(argosy.place(torch.ones(2), FIRST), 0, argosy.place(torch.tensor([7]), FIRST))

    with cluster_here(worker=1) as target, pytest.raises(RemoteError, match="gather"):
        program(target)


def test_a_session_keeps_a_thousand_errors_and_the_latest() -> None:
    faults = Faults("/job:worker/task:0")
    made = [faults.add("op", -1, ValueError(str(number))) for number in range(1500)]
    for fault in made[:1000]:
        assert faults.first() is fault
        faults.see(fault.number)
    assert faults.first() is made[-1]
    faults.see(made[-1].number)
    assert faults.first() is None


# --- what stays right beside it ---------------------------------------------------------------------------
def test_what_a_failing_row_has_to_send_leaves_before_it_is_written_to() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20):
        count = argosy.place(torch.zeros(4), FIRST)

        def step(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with argosy.device(SECOND):
                before = count + 0
            with argosy.device(FIRST):
                picked = torch.index_select(count, 0, index)
                count.add_(1)
                return before, picked.sum()

        captured = argosy.capture(step)
        for turn in range(16):
            before, picked = captured(torch.tensor([9 if turn % 2 else 0]))
            assert before.tolist() == [turn] * 4
            if turn % 2:
                with pytest.raises(RemoteError, match="index_select"):
                    picked.item()
