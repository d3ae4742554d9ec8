"""Who is in the job; and clipping by the norm over all servers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy.update.clipping import NormCollector
from argosy.update.membership import Presence, Roster


def test_everyone_is_expected_at_first() -> None:
    roster = Roster(2)
    assert [roster[worker] for worker in (0, 1)] == [Presence.EXPECTED] * 2
    assert list(roster.awaited()) == roster.missing() == [0, 1]
    assert 1 in roster
    assert 2 not in roster
    assert not roster.everyone_left()


def test_those_who_came_are_awaited_and_not_missing() -> None:
    roster = Roster(2)
    roster.arrive(1)
    assert roster.missing() == [0]
    assert list(roster.awaited()) == [0, 1]


def test_those_who_finished_or_are_gone_are_not_awaited() -> None:
    roster = Roster(3)
    roster.finish(0)
    roster.lose(2)
    assert list(roster.awaited()) == [1]
    assert (roster[0], roster[2]) == (Presence.FINISHED, Presence.GONE)
    roster.lose(1)
    assert roster.everyone_left()


def test_one_who_returns_is_awaited_again() -> None:
    roster = Roster(1)
    roster.lose(0)
    roster.arrive(0)
    assert list(roster.awaited()) == [0]
    assert not roster.everyone_left()


@settings(deadline=None, derandomize=True)
@given(
    shares=st.lists(st.lists(st.floats(-1e3, 1e3, width=32), max_size=5), min_size=1, max_size=4),
    max_norm=st.floats(1e-3, 1e4),
)
def test_the_factor_is_that_of_clip_grad_norm(shares: list[list[float]], max_norm: float) -> None:
    parameters = [torch.zeros(len(share), dtype=torch.float64, requires_grad=True) for share in shares]
    for parameter, share in zip(parameters, shares, strict=True):
        parameter.grad = torch.tensor(share, dtype=torch.float64)
    collector = NormCollector(len(shares), max_norm)
    squares = [sum(value * value for value in share) for share in shares]
    factors = [collector.report(server, 1, square) for server, square in enumerate(squares)]
    assert factors[:-1] == [None] * (len(shares) - 1)
    factor = factors[-1]
    assert factor is not None
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    for parameter, share in zip(parameters, shares, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, torch.tensor(share, dtype=torch.float64) * factor)


def test_two_steps_under_way_do_not_mix() -> None:
    collector = NormCollector(2, 1.0)
    assert collector.report(0, 1, 9.0) is None
    assert collector.report(0, 2, 0.0) is None
    assert collector.report(1, 2, 0.25) == 1.0
    assert collector.report(1, 1, 16.0) == pytest.approx(0.2)


def test_the_factor_does_not_depend_on_who_reports_first() -> None:
    squares = [1e16, 1.0, 1.0]
    factors = set()
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        collector = NormCollector(3, 1.0)
        factors.add([collector.report(server, 1, squares[server]) for server in order][-1])
    assert len(factors) == 1


def gone(*events: str) -> Roster:
    """Two workers; an event is what happens to one of them: `arrive 0`."""
    roster = Roster(2)
    for event in events:
        what, worker = event.split()
        getattr(roster, what)(int(worker))
    return roster


@pytest.mark.parametrize(
    ("events", "by"),
    [
        ((), None),
        (("arrive 0", "arrive 1", "lose 0"), None),
        (("arrive 0", "arrive 1", "lose 0", "lose 1"), 1),
        (("arrive 0", "arrive 1", "finish 0", "lose 1"), 1),
        (("arrive 0", "arrive 1", "lose 1", "finish 0"), None),
        (("arrive 0", "arrive 1", "finish 0", "finish 1"), None),
        # One who never came was not lost: it has left nothing unfinished.
        (("arrive 0", "finish 0", "lose 1"), None),
        (("arrive 0", "lose 0", "lose 1"), 0),
        (("arrive 0", "arrive 1", "lose 0", "arrive 0", "lose 1", "finish 0"), None),
    ],
)
def test_whose_loss_has_left_nobody_to_go_on(events: tuple[str, ...], by: int | None) -> None:
    assert gone(*events).abandoned_by() == by
