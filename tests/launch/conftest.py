"""A launcher that fails the test if it leaves anything behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Launcher


@pytest.fixture(params=["forked", "cold"])
def launcher(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Launcher]:
    """Tasks must not show how they were started."""
    made = Launcher(tmp_path, forked=request.param == "forked")
    yield made
    made.check_nothing_is_left()


@pytest.fixture
def forking_launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    made.check_nothing_is_left()
