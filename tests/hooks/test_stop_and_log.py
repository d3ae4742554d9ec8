"""StopAtStep and LogSteps."""

from __future__ import annotations

import re

import pytest
from hooked import alone, lines, train

from argosy.errors import ConfigError
from argosy.hooks import LogSteps, StopAtStep
from argosy.modes import Sync
from argosy.testing import LocalCluster


def test_training_stops_at_the_step() -> None:
    assert train(alone(), [StopAtStep(3)], last_step=9).tolist() == [[-3.0, -3.0]]


def test_a_step_that_is_reached_already_stops_before_the_first() -> None:
    assert train(alone(), [StopAtStep(0)]).tolist() == [[0.0, 0.0]]


def test_every_worker_of_a_synchronous_job_stops_at_the_same_step() -> None:
    cluster = LocalCluster(servers=2, workers=2, mode=Sync())
    found = cluster.run(lambda replica: train(replica, [StopAtStep(4)], last_step=50).tolist())
    assert found == [[[-4.0, -4.0]]] * 2


def test_a_line_has_the_numbers_that_were_logged_with_its_step(capsys: pytest.CaptureFixture[str]) -> None:
    train(alone(), [LogSteps(every=2)], last_step=12)
    said = [re.sub(r" +[\d.]+ steps/s", "", line) for line in lines(capsys)]
    # The loss of the step that made update n was logged as 100 + (n - 1).
    assert said == [f"step {step:2d} of 12  loss {99 + step:.1f}" for step in (2, 4, 6, 8, 10, 12)]


def test_lines_by_the_clock(capsys: pytest.CaptureFixture[str]) -> None:
    train(alone(), [LogSteps(seconds=1e-9)], last_step=3)
    assert len(lines(capsys)) == 3
    train(alone(), [LogSteps(seconds=1000)], last_step=3)
    assert lines(capsys) == []


def test_the_chief_alone_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    LocalCluster(servers=1, workers=2, mode=Sync()).run(lambda replica: train(replica, [LogSteps(every=1)]))
    assert len([line for line in lines(capsys) if "steps/s" in line]) == 5


def test_the_session_then_says_no_such_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("argosy.session.session.LOG_EVERY", 0.0)
    train(alone(), [LogSteps(every=5)])
    assert len(lines(capsys)) == 1


def test_what_cannot_work_is_refused() -> None:
    for make in (
        lambda: LogSteps(),
        lambda: LogSteps(1, seconds=1.0),
        lambda: LogSteps(0),
        lambda: LogSteps(seconds=0.0),
        lambda: StopAtStep(-1),
    ):
        with pytest.raises(ConfigError, match="expected"):
            make()
