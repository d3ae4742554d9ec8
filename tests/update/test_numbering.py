"""Numbered links, exhaustively: every way in which messages can be lost is noticed, and nothing else is."""

from __future__ import annotations

from itertools import product

import pytest

from argosy.update.numbering import Incoming, Outgoing

LENGTH = 6


def sent() -> list[int]:
    outgoing = Outgoing()
    return [outgoing.next() for _ in range(LENGTH)]


@pytest.mark.parametrize("told_after", range(LENGTH + 1))
def test_every_loss_is_noticed(told_after: int) -> None:
    """Of six messages every subset arrives; the count is told at some point, and always at the end."""
    for arrives in product([True, False], repeat=LENGTH):
        incoming, taken = Incoming(), []
        for number, comes in zip(sent(), arrives, strict=True):
            if number == told_after + 1:
                incoming.expect(told_after)
            if comes and incoming.take(number):
                taken.append(number)
        incoming.expect(LENGTH)
        first = next((number for number, comes in zip(sent(), arrives, strict=True) if not comes), None)
        assert incoming.missed == first
        assert taken == list(range(1, first or LENGTH + 1)), "what came after a loss was taken"


@pytest.mark.parametrize("again", range(1, LENGTH + 1))
def test_what_comes_twice_is_taken_once(again: int) -> None:
    incoming = Incoming()
    for number in sent():
        assert incoming.take(number)
        if number >= again:
            assert not incoming.take(again)
    assert incoming.missed is None
    incoming.expect(LENGTH)
    assert incoming.missed is None


def test_an_older_count_is_no_loss() -> None:
    """It was told before what has come since."""
    incoming = Incoming()
    for number in sent():
        incoming.take(number)
    incoming.expect(LENGTH - 2)
    assert incoming.missed is None
