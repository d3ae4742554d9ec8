"""Modes: how they are read, what a cluster suggests, and what cannot work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from argosy.cluster.settings import choose_mode, read_mode
from argosy.errors import ConfigError
from argosy.modes import Async, Local, Mode, Ring, Sync, mode_name


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ({}, None),
        ({"mode": "async"}, Async()),
        ({"mode": "async", "max_staleness": "0"}, Async(max_staleness=0)),
        ({"mode": "ring"}, Ring()),
        ({"mode": "sync"}, Sync()),
        ({"mode": "sync", "aggregate": "2"}, Sync(aggregate=2)),
        ({"mode": "sync", "aggregate": "2", "late": "fold"}, Sync(aggregate=2, late="fold")),
        ({"mode": "sync", "aggregate": "9", "tokens": "4"}, Sync(aggregate=9, distinct=False, tokens=4)),
        ({"is_sync": "True"}, Sync()),
        ({"is_sync": "false"}, Async()),
        ({"is_sync": "1", "mode": "sync"}, Sync()),
        ({"is_sync": "0", "max_staleness": "3"}, Async(max_staleness=3)),
    ],
)
def test_a_mode_is_read(words: dict[str, str], mode: Mode | None) -> None:
    assert read_mode(words) == mode


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"mode": "Sync"}, "mode: expected one of sync, async, ring, got 'Sync'"),
        ({"is_sync": "perhaps"}, "is_sync: expected true or false, got 'perhaps'"),
        ({"is_sync": "true", "mode": "async"}, "mode: expected sync, as is_sync=true says, got 'async'"),
        ({"aggregate": "2"}, "aggregate: expected mode sync, got mode not set; add --mode sync"),
        ({"mode": "async", "late": "fold"}, "late: expected mode sync, got mode async; add --mode sync"),
        (
            {"mode": "sync", "max_staleness": "1"},
            "max_staleness: expected mode async, got mode sync; add --mode async",
        ),
        ({"mode": "sync", "aggregate": "0"}, "aggregate: expected a whole number, 1 or more, got '0'"),
        ({"mode": "sync", "late": "keep"}, "late: expected drop or fold, got 'keep'"),
        ({"mode": "sync", "tokens": "-1"}, "tokens: expected a whole number, 0 or more, got '-1'"),
        (
            {"mode": "async", "max_staleness": "x"},
            "max_staleness: expected a whole number, 0 or more, got 'x'",
        ),
    ],
)
def test_a_mode_that_makes_no_sense_is_refused(words: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_mode(words)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("servers", "workers", "mode"),
    [(0, 1, Local()), (0, 2, Ring()), (1, 1, Async()), (2, 2, Async()), (1, 0, Async())],
)
def test_a_cluster_suggests_a_mode(servers: int, workers: int, mode: Mode) -> None:
    assert choose_mode(None, servers, workers) == mode


@pytest.mark.parametrize("mode", [Sync(), Async(), Sync(aggregate=2), Async(max_staleness=2)])
def test_what_is_asked_for_is_chosen(mode: Mode) -> None:
    assert choose_mode(mode, 1, 2) is mode


@pytest.mark.parametrize(
    ("mode", "servers", "field"),
    [(Sync(), 0, "mode"), (Async(), 0, "mode"), (Ring(), 1, "mode"), (Sync(aggregate=3), 1, "aggregate")],
)
def test_what_the_cluster_cannot_do_is_refused(mode: Mode, servers: int, field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_mode(mode, servers, 2)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("mode", "workers", "field"),
    [
        (Sync(), 1, None),
        (Sync(aggregate=3), 3, None),
        (Sync(aggregate=4), 3, "aggregate"),
        (Sync(aggregate=4, distinct=False), 1, None),
        (Sync(aggregate=4, distinct=False, tokens=1), 2, None),
        (Sync(aggregate=5, distinct=False, tokens=1), 2, "tokens"),
        (Sync(aggregate=1, distinct=False, tokens=0), 2, None),
        (Async(max_staleness=0), 5, None),
        (Ring(), 5, None),
        (Local(), 1, None),
    ],
)
def test_a_mode_is_checked_against_the_number_of_workers(mode: Mode, workers: int, field: str | None) -> None:
    if field is None:
        mode.check(workers)
        return
    with pytest.raises(ConfigError) as caught:
        mode.check(workers)
    assert caught.value.field == field


def test_the_tokens_that_are_needed_are_named() -> None:
    with pytest.raises(ConfigError, match="expected at least 2, or 2 workers never make 5 gradients, got 1"):
        Sync(aggregate=5, distinct=False, tokens=1).check(2)
    Sync(aggregate=5, distinct=False, tokens=2).check(2)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Async(max_staleness=-1), "max_staleness"),
        (lambda: Sync(aggregate=0), "aggregate"),
        (lambda: Sync(late="keep"), "late"),  # type: ignore[arg-type]
        (lambda: Sync(tokens=-1), "tokens"),
        (lambda: Sync(tokens=2), "tokens"),
    ],
)
def test_a_mode_is_validated_where_it_is_born(make: Callable[[], Mode], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


def test_modes_have_names() -> None:
    modes = (Sync(), Async(), Ring(), Local())
    assert [mode_name(mode) for mode in modes] == ["sync", "async", "ring", "local"]
