"""The log on paper: whatever is lost, doubled or reordered, followers take every entry once, in order."""

from __future__ import annotations

import random
from itertools import product

import pytest

from argosy.update.log import Log, LogReader

LENGTH = 6


class Follower:
    """One follower of a log, and the messages on their way between them."""

    def __init__(self, log: Log[str], name: int) -> None:
        self.log = log
        self.name = name
        self.reader = LogReader()
        self.taken: list[str] = []

    def hear(self, index: int, entry: str) -> bool:
        """An entry arrives; whether it has to be sent again from where the follower is."""
        if self.reader.take(self.log.epoch, index):
            self.taken.append(entry)
        return self.reader.misses(self.log.epoch, index)

    def catch_up(self) -> None:
        """The writer says how far it is, the follower asks, and gets what it lacks."""
        if self.reader.lags(self.log.epoch, self.log.last):
            for index, entry in self.log.after(self.reader.taken):
                self.hear(index, entry)
        self.log.acknowledge(self.name, self.reader.taken)


def entries(count: int) -> list[str]:
    return [f"entry {number}" for number in range(1, count + 1)]


def test_every_subset_that_arrives_is_made_whole() -> None:
    """A follower takes a prefix, notices a gap when something comes after it, and catches up at last."""
    for arrives in product([True, False], repeat=LENGTH):
        log = Log[str]([1])
        follower = Follower(log, 1)
        gaps = 0
        for entry, comes in zip(entries(LENGTH), arrives, strict=True):
            index = log.append(entry)
            gaps += comes and follower.hear(index, entry)
        first_lost = arrives.index(False) if False in arrives else LENGTH
        assert follower.taken == entries(first_lost)
        assert gaps == any(arrives[first_lost:]), "a gap is said once"
        follower.catch_up()
        assert follower.taken == entries(LENGTH)
        assert log.kept == 0
        assert log.is_known_to(1)


@pytest.mark.parametrize("again", range(1, LENGTH + 1))
def test_what_comes_twice_is_taken_once(again: int) -> None:
    reader = LogReader()
    for index in range(1, LENGTH + 1):
        assert reader.take(1, index)
        if index >= again:
            assert not reader.take(1, again)
            assert not reader.misses(1, again)
    assert reader.taken == LENGTH


def test_an_entry_is_kept_until_the_last_follower_has_it() -> None:
    log = Log[str]([1, 2])
    for entry in entries(4):
        log.append(entry)
    log.acknowledge(1, 4)
    log.acknowledge(2, 1)
    assert list(log.after(1)) == [(2, "entry 2"), (3, "entry 3"), (4, "entry 4")]
    log.acknowledge(2, 3)
    assert list(log.after(0)) == [(4, "entry 4")]
    log.acknowledge(2, 2)  # said before, and late
    assert log.kept == 1
    assert not log.is_known_to(2)
    log.acknowledge(2, 4)
    assert (log.kept, log.is_known_to(2)) == (0, True)


def test_nobody_acknowledges_what_was_not_written() -> None:
    log = Log[str]([1])
    log.append("entry 1")
    log.acknowledge(1, 10**6)
    assert (log.kept, log.is_known_to(1)) == (1, False)


def test_without_followers_nothing_is_kept() -> None:
    log = Log[str]([])
    assert [log.append(entry) for entry in entries(3)] == [1, 2, 3]
    assert log.kept == 0


def test_an_earlier_epoch_is_fenced() -> None:
    """A writer that was replaced may still speak: whatever it says is passed over."""
    reader = LogReader()
    assert reader.take(1, 1)
    assert reader.take(2, 2)
    assert not reader.take(1, 3)
    assert not reader.misses(1, 9)
    assert not reader.lags(1, 9)
    assert reader.take(2, 3)
    assert (reader.epoch, reader.taken) == (2, 3)


def test_a_log_goes_on_in_its_next_epoch() -> None:
    log = Log[str]([1], epoch=2, last=7)
    assert log.append("entry 8") == 8
    assert list(log.after(7)) == [(8, "entry 8")]


@pytest.mark.parametrize("seed", range(200))
def test_any_network(seed: int) -> None:
    """Two followers, messages that are lost, doubled and reordered at random, acknowledgements too."""
    rng = random.Random(seed)
    log = Log[str]([1, 2])
    followers = [Follower(log, name) for name in (1, 2)]
    on_the_way: list[tuple[Follower, int, str]] = []
    for entry in entries(30):
        index = log.append(entry)
        for follower in followers:
            on_the_way += [(follower, index, entry)] * rng.choice([0, 1, 1, 1, 2])
        for _ in range(rng.randint(0, 4)):
            if on_the_way:
                follower, number, text = on_the_way.pop(rng.randrange(min(4, len(on_the_way))))
                if follower.hear(number, text) and rng.random() < 0.5:
                    on_the_way += [(follower, *kept) for kept in log.after(follower.reader.taken)]
        if rng.random() < 0.1:
            rng.choice(followers).catch_up()
    for follower in followers:
        follower.catch_up()
        assert follower.taken == entries(30)
    assert log.kept == 0


def test_every_gap_is_asked_for_once() -> None:
    reader = LogReader()
    assert reader.take(1, 1)
    assert reader.misses(1, 3)
    assert not reader.misses(1, 4)
    assert reader.take(1, 2)
    assert reader.misses(1, 4)
    assert reader.take(1, 3)
    assert reader.take(1, 4)
    assert reader.misses(1, 6)
