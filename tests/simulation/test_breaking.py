"""Random jobs of the real code whose connections all break: every gradient counts exactly once."""

from __future__ import annotations

import pytest
from breaking import play

SCHEDULES = 300
AT_ONCE = 30


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, SCHEDULES, AT_ONCE))
def test_connections_that_break_at_random(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argosy.server.peer_links.TELL_EVERY", 0.02)
    monkeypatch.setattr("argosy.server.parameter_server._LOOK_EVERY", 0.01)
    monkeypatch.setattr("argosy.store.conversation._SLICE", 0.02)
    for seed in range(first, first + AT_ONCE):
        play(seed)
