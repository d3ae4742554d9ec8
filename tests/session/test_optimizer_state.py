"""The optimizer of a session: its state in torch's format, its hyperparameters from script or checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from saved_trainings import ONE_AT_A_TIME
from torch import nn

from argosy.errors import ConfigError
from argosy.modes import Sync
from argosy.replica.replica import Replica
from argosy.store.placement import Split
from argosy.testing import LocalCluster


@pytest.mark.parametrize("lane", ["queue", "memory"])
@pytest.mark.parametrize("placement", [None, Split(2)])
def test_the_state_of_an_optimizer_is_in_torchs_format(lane: Any, placement: Any) -> None:
    def program(replica: Replica) -> dict[str, Any]:
        with ONE_AT_A_TIME:
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
        optimizer = replica.distribute(torch.optim.Adam(model.parameters(), lr=0.1), placement=placement)
        with replica.session(model, optimizer, last_step=5) as session:
            for _ in session.batches(range(9)):
                optimizer.zero_grad()
                model(torch.full((3, 5), session.global_step + 1.0)).sum().backward()
                optimizer.step()
            before = [parameter.detach().clone() for parameter in model.parameters()]
            state = optimizer.state_dict()
            assert all(map(torch.equal, before, model.parameters()))
        return state

    inner = torch.optim.Adam([nn.Parameter(torch.zeros(size)) for size in ((4, 5), (4,), (2, 4), (2,))])
    (theirs,) = LocalCluster(2, 1, Sync(), lane=lane).run(program)
    (alone_,) = LocalCluster(1, 1, Sync(), lane=lane).run(program)
    for state in (theirs, alone_):
        inner.load_state_dict(state)
    assert theirs["state"].keys() == {0, 1, 2, 3}
    for number, kept in theirs["state"].items():
        assert kept.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert kept["step"] == 5
        assert kept["exp_avg"].shape == inner.param_groups[0]["params"][number].shape
        assert torch.allclose(kept["exp_avg"], alone_["state"][number]["exp_avg"])
        assert kept["exp_avg"].abs().sum() > 0


def test_after_the_session_the_state_is_gone_and_it_says_so() -> None:
    def program(replica: Replica) -> str:
        model = nn.Linear(1, 1)
        optimizer = replica.distribute(torch.optim.Adam(model.parameters()))
        with replica.session(model, optimizer, last_step=0):
            pass
        for late in (optimizer.state_dict, optimizer.step):
            with pytest.raises(ConfigError, match=r"session that goes on, got one that has ended.*inside"):
                late()
        return "done"

    assert LocalCluster(2, 1, Sync(), lane="memory").run(program) == ["done"]


def test_the_script_or_the_checkpoint_has_the_learning_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rate(scripted: float, **options: Any) -> float:
        def program(replica: Replica) -> float:
            model = nn.Linear(1, 1)
            optimizer = replica.distribute(
                torch.optim.Adam(model.parameters(), lr=scripted, betas=(0.5, 0.9))
            )
            with replica.session(model, optimizer, directory=tmp_path, last_step=1, **options) as session:
                for _ in session.batches(range(1)):
                    model(torch.ones(1, 1)).backward()
                    optimizer.step()
                assert optimizer.param_groups[0]["betas"] == (0.5, 0.9)
                return float(optimizer.param_groups[0]["lr"])

        return float(LocalCluster(1, 1).run(program)[0])

    assert rate(0.25) == 0.25
    assert rate(0.5) == 0.25
    assert rate(0.5, hyperparameters="script") == 0.5
