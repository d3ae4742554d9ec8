"""TensorBoard: scalars of the chief and the servers; a remedy where the package is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hooked import alone, train

from argosy.errors import ConfigError
from argosy.hooks import TensorBoard
from argosy.modes import Sync
from argosy.testing import LocalCluster

# Its own dependencies warn of what will change in Python.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def scalars_in(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar that was written, as TensorBoard reads it."""
    accumulators: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulators.EventAccumulator(str(directory))
    reader.Reload()
    return {
        tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]
    }


def test_scalars_of_the_chief_and_the_servers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    LocalCluster(servers=2, workers=2, mode=Sync()).run(
        lambda replica: train(replica, [TensorBoard(tmp_path)], last_step=6, loss=lambda step: 0.5)
    )
    found = scalars_in(tmp_path)
    assert found["loss"][-1] == (6, 0.5)
    assert found["servers/dropped"][-1] == (6, 0.0)
    names = {"servers/staleness", "servers/queue", "speed/steps_per_second", "speed/gradients_per_second"}
    names |= {f"{kind}/worker_{index}" for kind in ("speed", "staleness") for index in range(2)}
    assert names <= found.keys()


def test_alone_too_and_by_default_in_the_session_s_directory(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(alone(), [TensorBoard(seconds=1e-9)], directory=tmp_path, last_step=4)
    assert scalars_in(tmp_path / "tensorboard")["loss"][-1] == (4, 103.0)


def test_without_the_package_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install 'argosy\[tensorboard\]'"):
        train(alone(), [TensorBoard(tmp_path)])


def test_a_folder_is_needed() -> None:
    with pytest.raises(ConfigError, match="give the session a directory"):
        train(alone(), [TensorBoard()])
