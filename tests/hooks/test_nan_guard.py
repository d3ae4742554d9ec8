"""NanGuard: a gradient that is not finite reaches no parameter, and is told of."""

from __future__ import annotations

import math

import pytest
import torch
from hooked import alone, lines, train

from argosy.errors import ConfigError, NotFinite
from argosy.hooks import NanGuard
from argosy.hooks.nan_guard import _surely_finite
from argosy.modes import Async, Mode, Sync
from argosy.testing import LocalCluster

BAD = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("value", BAD)
def test_stop_names_worker_step_and_parameter(value: float) -> None:
    with pytest.raises(NotFinite) as caught:
        train(alone(), [NanGuard()], gradient=lambda step: value if step == 2 else 1.0)
    text = str(caught.value)
    assert text.startswith("/job:worker/task:0, step 2: expected the gradient of weight to be finite, got 2 ")
    assert "of 2 values; try a lower learning rate" in text
    assert "\n" not in text
    assert (caught.value.task, caught.value.step) == ("/job:worker/task:0", 2)


@pytest.mark.parametrize("value", BAD)
def test_skip_leaves_the_parameters_alone_and_says_so(
    value: float, capsys: pytest.CaptureFixture[str]
) -> None:
    guard = NanGuard(action="skip")
    weights = train(alone(), [guard], gradient=lambda step: value if step in (1, 3) else 1.0)
    assert weights.tolist() == [[-5.0, -5.0]]
    assert guard.skipped == 2
    said = lines(capsys)
    assert len(said) == 2, said  # the second came within seconds of the first
    assert said[0].startswith("/job:worker/task:0, step 1: the gradient of weight has 2 ")
    assert said[1] == "/job:worker/task:0 skipped 2 steps because its gradients were not finite"


@pytest.mark.parametrize("mode", [Async(), Sync()])
def test_in_a_job_nobody_is_held_up_and_nothing_is_poisoned(mode: Mode) -> None:
    cluster = LocalCluster(servers=2, workers=2, mode=mode)

    def program(replica: object) -> list[list[float]]:
        from argosy.entry import Replica

        assert isinstance(replica, Replica)
        bad = replica.index == 1
        weights = train(
            replica, [NanGuard("skip")], last_step=6, gradient=lambda step: math.nan if bad else 1.0
        )
        found: list[list[float]] = weights.tolist()
        return found

    assert cluster.run(program) == [[[-6.0, -6.0]]] * 2


def test_a_job_ends_with_the_error_of_the_worker_that_found_it() -> None:
    cluster = LocalCluster(servers=1, workers=2, mode=Sync())
    outcome = cluster.run_to_the_end(
        lambda replica: train(
            replica,
            [NanGuard()],
            last_step=50,
            gradient=lambda step: math.nan if replica.index == 1 and step == 3 else 1.0,
        )
    )
    assert isinstance(outcome.errors["/job:worker/task:1"], NotFinite)
    assert "/job:worker/task:1, step 3" in str(outcome.errors["/job:worker/task:0"])


def test_large_numbers_are_not_infinite() -> None:
    large = [torch.full((100,), 3e38), torch.full((100,), 60000.0, dtype=torch.float16)]
    assert not _surely_finite(large)
    weights = train(alone(), [NanGuard()], last_step=1, gradient=lambda step: 3e38)
    assert weights.isfinite().all()


def test_a_loss_that_is_not_finite_though_its_gradient_was(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotFinite, match="step 2: expected the loss to be finite, got nan"):
        train(alone(), [NanGuard()], loss=lambda step: math.nan if step == 1 else 1.0)
    capsys.readouterr()
    weights = train(alone(), [NanGuard("skip")], loss=lambda step: math.nan if step == 1 else 1.0)
    assert weights.tolist() == [[-5.0, -5.0]]
    assert lines(capsys) == [
        "/job:worker/task:0, step 2: the loss is nan, though its gradient was finite; nothing is skipped"
    ]


def test_the_loss_of_a_skipped_step_skips_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    bad = [1.0, math.nan, 1.0, 1.0, 1.0, 1.0]
    weights = train(alone(), [guard := NanGuard("skip")], gradient=bad.__getitem__, loss=bad.__getitem__)
    assert (guard.skipped, weights.tolist()) == (1, [[-5.0, -5.0]])
    assert len(lines(capsys)) == 2


def test_sparse_gradients() -> None:
    replica = alone()
    model = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
    with replica.session(model, optimizer, hooks=[NanGuard()]):
        (model(torch.tensor([1])).sum() * math.nan).backward()
        with pytest.raises(NotFinite, match="gradient of weight"):
            optimizer.step()


def test_other_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="stop or skip"):
        NanGuard("ignore")  # type: ignore[arg-type]
