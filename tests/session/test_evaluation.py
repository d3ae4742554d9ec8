"""An evaluator that comes after the end of its job: it evaluates what is there, and leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_trainings import alone, model_and_optimizer, training

from argosy.cluster.discover import discover
from argosy.cluster.spec import ClusterSpec, Task
from argosy.entry import Replica
from argosy.errors import WaitTimeout

pytestmark = pytest.mark.timeout(60)
CLUSTER = ClusterSpec({"ps": ["a:1"], "worker": ["b:1"]})


def train(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has ended, and left three checkpoints."""
    for last_step in (2, 4, 6):
        alone(training(last_step, directory=directory), monkeypatch)


def evaluate(directory: Path, last_step: int | None, wait: float = 30.0) -> list[int]:
    """The steps that an evaluator has evaluated, in order, when it leaves."""
    replica = Replica(discover({"wait": str(wait)}, {}, cluster=CLUSTER, task=Task("evaluator", 0)), None)
    model, inner = model_and_optimizer()
    seen: list[torch.Tensor] = []

    def judge(model: Any) -> dict[str, float]:
        assert not model.training
        seen.append(model.out.bias.detach().clone())
        return {"norm": model.out.bias.norm()}

    with replica.session(
        model, replica.distribute(inner), directory=directory, last_step=last_step, evaluate=judge
    ) as session:
        assert list(session.batches(range(5))) == []
    found = {int(path.name.split(".")[0][5:]): path for path in directory.glob("*.evaluation.json")}
    for step, bias in zip(sorted(found), seen, strict=True):
        record = json.loads(found[step].read_text())
        assert record["step"] == step
        assert record["result"]["norm"] == pytest.approx(float(bias.norm()))
    return sorted(found)


@pytest.mark.parametrize("last_step", [None, 6, 100])
def test_it_evaluates_what_is_there_and_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_step: int | None
) -> None:
    """Also if the job has ended before its last step, and nobody will ever reach it."""
    train(tmp_path, monkeypatch)
    assert evaluate(tmp_path, last_step) == [2, 4, 6]


def test_it_passes_over_what_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, monkeypatch)
    (tmp_path / "step-6" / "index.json").write_bytes(b"{")
    assert evaluate(tmp_path, 6) == [2, 4]
    assert "damaged checkpoint" in capsys.readouterr().err


def test_without_any_checkpoint_it_gives_up_in_time(tmp_path: Path) -> None:
    with pytest.raises(WaitTimeout, match="missing the first checkpoint in"):
        evaluate(tmp_path, None, wait=0.5)
