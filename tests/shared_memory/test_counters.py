"""The order of shared numbers, on this processor and on those that promise less."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from weak_order import Event, Lock, Words, outcomes, weak, x86

from argosy.shared_memory import counters
from argosy.shared_memory.counters import ENDS_AT, NEVER, SPACE, WIDTH, Counters

# Where the process of row 0 writes what it then tells of, and what that of row 1 does.
DATA, OTHER_DATA = SPACE, WIDTH + SPACE
Keeps = Callable[[Event, Event], bool]


@pytest.fixture(params=[x86, weak])
def keeps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeps]:
    """A kind of processor; the code is told which."""
    monkeypatch.setattr(counters, "ORDERED", request.param is x86)
    return request.param  # type: ignore[no-any-return]


def recorded(row: int, program: Callable[[Counters, Words], None], **numbers: int) -> list[Event]:
    """What a process does in shared memory. `numbers`: what it finds there, such as `at_3=1`."""
    words: Any = Words(2 * WIDTH)
    words.numbers[ENDS_AT] = words.numbers[WIDTH + ENDS_AT] = NEVER
    for name, number in numbers.items():
        words.numbers[int(name.removeprefix("at_"))] = number
    table = Counters(words, row, (-1, -1))
    table._fence = Lock(words.trace)  # type: ignore[assignment]
    program(table, words)
    return list(words.trace)


def seen_together(found: set[tuple[tuple[int, int], ...]], *reads: tuple[int, int]) -> bool:
    """Whether one outcome has all of these reads."""
    return any(set(reads) <= set(outcome) for outcome in found)


def write_and_post(table: Counters, words: Words) -> None:
    words[DATA] = 7
    table.post(0)


def look_and_read(table: Counters, words: Words) -> None:
    assert table.behind(0, 1, 1) is None
    words[DATA]


def test_who_sees_a_number_sees_what_was_written_before(keeps: Keeps) -> None:
    found = outcomes(recorded(0, write_and_post), recorded(1, look_and_read, at_0=1), keeps)
    assert seen_together(found, (0, 1), (DATA, 7))
    assert seen_together(found, (0, 0), (DATA, 0))
    assert not seen_together(found, (0, 1), (DATA, 0))


def test_who_is_woken_to_see_a_number_sees_what_was_written_before(
    keeps: Keeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "ring", lambda bell: None)

    def publish(table: Counters, words: Words) -> None:
        words[DATA] = 7
        table.publish(9, 1)

    def look(table: Counters, words: Words) -> None:
        table.seen(0, 9)
        words[DATA]

    found = outcomes(recorded(0, publish), recorded(1, look), keeps)
    assert seen_together(found, (9, 1), (DATA, 7))
    assert not seen_together(found, (9, 1), (DATA, 0))


def test_what_was_read_before_a_number_was_posted_is_not_of_later(keeps: Keeps) -> None:
    """Who waits until all have read may write anew."""

    def read_and_post(table: Counters, words: Words) -> None:
        words[DATA]
        table.post(1)

    def wait_and_write(table: Counters, words: Words) -> None:
        assert table.behind(1, 1, 0) is None
        words[DATA] = 8

    found = outcomes(recorded(0, wait_and_write, **{f"at_{WIDTH + 1}": 1}), recorded(1, read_and_post), keeps)
    assert seen_together(found, (WIDTH + 1, 1), (DATA, 0))
    assert not seen_together(found, (WIDTH + 1, 1), (DATA, 8))


def test_of_one_who_posts_and_one_who_falls_asleep_one_sees_the_other(keeps: Keeps) -> None:
    wanted = WIDTH + counters._WANTED

    def sleep(table: Counters, words: Words) -> None:
        table.fall_asleep(0, 1)
        table.behind(0, 1, 1)

    found = outcomes(recorded(0, write_and_post), recorded(1, sleep), keeps)
    asleep = 1 * counters._KINDS
    assert seen_together(found, (wanted, asleep), (0, 0))
    assert seen_together(found, (wanted, 0), (0, 1))
    assert not seen_together(found, (wanted, 0), (0, 0))


# --- that these tests can fail ----------------------------------------------------------------------------
def test_the_order_of_x86_is_not_enough_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "ORDERED", True)
    found = outcomes(recorded(0, write_and_post), recorded(1, look_and_read, at_0=1), weak)
    assert seen_together(found, (0, 1), (DATA, 0))


@pytest.mark.parametrize(("locks", "enough"), [(1, False), (2, True)])
def test_one_lock_is_no_fence(locks: int, enough: bool) -> None:
    """What comes before and what follows may both move into it."""
    fence = [Event("acquire"), Event("release")] * locks
    writer = [Event("write", 1, 1), *fence, Event("write", 2, 1)]
    reader = [Event("read", 2), *fence, Event("read", 1)]
    assert seen_together(outcomes(writer, reader, weak), (2, 1), (1, 0)) is not enough


def test_a_fence_takes_a_lock_that_others_may_take_too() -> None:
    lock = threading.Lock()
    counters.fence(lock)
    assert not lock.locked()
