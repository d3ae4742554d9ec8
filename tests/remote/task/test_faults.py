"""What goes wrong on a task: who is told of it, how often, and what stays right beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from clusters import cluster_here

import argosy
from argosy.errors import RemoteError
from argosy.remote.task.faults import Faults

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
        faults.mark_seen(fault.number)
    assert faults.first() is made[-1]
    faults.mark_seen(made[-1].number)
    assert faults.first() is None


# --- operations that only check ---------------------------------------------------------------------------
def indefinite(device: str = FIRST) -> torch.Tensor:
    """A matrix that has no Cholesky factor."""
    return argosy.place(-torch.eye(3), device)


def test_a_check_fails_what_it_checks_and_the_other_results_of_the_same_call() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20):
        factor = torch.linalg.cholesky(indefinite())
        product = factor @ factor
        with argosy.device(SECOND):
            further = product + 1
        for wrong in (factor, factor.mT, product, further):
            with pytest.raises(RemoteError, match=r"_linalg_check_errors.*leading minor"):
                wrong.cpu()
        assert torch.linalg.cholesky(-indefinite()).trace().item() == 3


@pytest.mark.parametrize(
    "solve",
    [
        torch.linalg.inv,
        torch.linalg.lu_factor,
        lambda a: torch.linalg.solve(a, torch.ones(3, 1)),
    ],
    ids=["inv", "lu_factor", "solve"],
)
def test_a_singular_matrix_is_an_error_wherever_torch_says_so(solve: Callable[[torch.Tensor], Any]) -> None:
    with cluster_here(worker=1) as target, argosy.connect(target, wait=20):
        found = solve(argosy.place(torch.zeros(3, 3), FIRST))
        found = found if isinstance(found, torch.Tensor) else found[0]
        with pytest.raises(RemoteError, match="_linalg_check_errors"):
            found.cpu()


def test_a_copy_that_was_sent_before_the_check_is_not_used_after_it() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20), argosy.device(SECOND):
        factor, info = torch.linalg.cholesky_ex(indefinite())
        early = factor + 1
        torch._linalg_check_errors(info, "cholesky", is_matrix=True)
        late = factor + 1
        assert early.shape == early.cpu().shape
        with pytest.raises(RemoteError, match="_linalg_check_errors"):
            late.cpu()


def test_an_assertion_fails_what_it_looked_at() -> None:
    with cluster_here(worker=1) as target, argosy.connect(target, wait=20):
        fine, wrong = argosy.place(torch.tensor([1, 0]), FIRST)
        torch._assert_async(fine)
        torch._assert_async(wrong, "expected it to be true")
        with pytest.raises(RemoteError, match=r"_assert_async.*expected it to be true"):
            (wrong + 1).item()


def test_an_assertion_about_an_ordinary_tensor_is_raised_at_once() -> None:
    ordinary = torch.tensor(0)
    expected = pytest.raises(RuntimeError, match="expected it to be true")
    with cluster_here(worker=1) as target, argosy.connect(target, wait=20), argosy.device(FIRST), expected:
        torch._assert_async(ordinary, "expected it to be true")


def test_a_check_inside_a_captured_step_fails_what_it_checks() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20):
        base = argosy.place(torch.eye(3), FIRST)

        def step(scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
            with argosy.device(FIRST):
                factor = torch.linalg.cholesky(base * scale)
                determinant = factor.diagonal().prod()
            with argosy.device(SECOND):
                return factor, determinant, factor * 2, base + 1

        captured = argosy.capture(step)
        for turn in range(12):
            *results, independent = captured(torch.tensor(-1.0 if turn % 2 else 4.0))
            if turn % 2:
                for wrong in results:
                    with pytest.raises(RemoteError, match="_linalg_check_errors"):
                        wrong.cpu()
            else:
                assert [each.sum().item() for each in results] == [6, 8, 12]
            assert independent.sum().item() == 12


def test_a_check_inside_a_captured_step_fails_what_was_there_before() -> None:
    with cluster_here(worker=1) as target, argosy.connect(target, wait=20):

        @argosy.capture
        def check(factor: torch.Tensor, info: torch.Tensor) -> torch.Tensor:
            torch._linalg_check_errors(info, "cholesky", is_matrix=True)
            return factor + 1

        for turn in range(8):
            matrix = indefinite() if turn % 2 else -indefinite()
            factor, info = torch.linalg.cholesky_ex(matrix)
            result = check(factor, info)
            if turn % 2:
                for wrong in (factor, result):
                    with pytest.raises(RemoteError, match="_linalg_check_errors"):
                        wrong.cpu()
            else:
                assert result.trace().item() == 6


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
