"""Hooks are called in order, around every step, and an error names the hook."""

from __future__ import annotations

import pytest
import torch

import argosy
from argosy.errors import HookFailed
from argosy.hooks import Hook
from argosy.replica.optimizer import DistributedOptimizer
from argosy.session.session import Session


class Recorder(Hook):
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def begin(self, session: Session) -> None:
        self.calls.append(("begin", session.global_step))

    def before_step(self, session: Session) -> None:
        self.calls.append(("before", session.global_step))

    def after_step(self, session: Session) -> None:
        self.calls.append(("after", session.global_step))

    def end(self, session: Session) -> None:
        self.calls.append(("end", session.global_step))


def train(monkeypatch: pytest.MonkeyPatch, *hooks: Hook, last_step: int = 2) -> torch.nn.Linear:
    monkeypatch.setattr("sys.argv", ["train.py"])
    replica = argosy.join()
    model = torch.nn.Linear(2, 1)
    torch.nn.init.zeros_(model.weight)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
    with replica.session(model, optimizer, last_step=last_step, hooks=hooks) as session:
        for _ in session.batches(range(10)):
            step(model, optimizer)
    return model


def step(model: torch.nn.Linear, optimizer: DistributedOptimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_hooks_are_called_around_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    train(monkeypatch, recorder)
    expected = [("begin", 0), ("before", 0), ("after", 1), ("before", 1), ("after", 2), ("end", 2)]
    assert recorder.calls == expected


def test_a_hook_may_keep_a_gradient_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Skip(Hook):
        def before_step(self, session: Session) -> None:
            session.skip_step()

        def after_step(self, session: Session) -> None:
            assert session.verdict.status == "skipped"
            session.stop()

    assert train(monkeypatch, Skip()).weight.tolist() == [[0.0, 0.0]]


def test_a_hook_may_stop_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Hook):
        def after_step(self, session: Session) -> None:
            if session.global_step == 3:
                session.stop()

    recorder = Recorder()
    train(monkeypatch, Stop(), recorder, last_step=9)
    assert recorder.calls[-1] == ("end", 3)


@pytest.mark.parametrize("method", ["begin", "before_step", "after_step", "end"])
def test_an_error_in_a_hook_names_the_hook(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def fail(self: Hook, session: Session) -> None:
        raise ValueError("boom")

    broken = type("Broken", (Hook,), {method: fail})
    with pytest.raises(HookFailed, match=f"the hook Broken.{method} failed at step . *: ValueError: boom"):
        train(monkeypatch, broken())
