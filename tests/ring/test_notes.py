"""What the rows of a round come to, on paper."""

from __future__ import annotations

from itertools import product

import pytest

from argosy.ring.notes import DENSE, NO_WISHES, PLAIN, Said, Says, Wishes, conclude, head, read_head


@pytest.mark.parametrize(("says", "wishes"), list(product(Says, map(Wishes, range(4)))))
def test_a_head_is_read_as_it_was_written(says: Says, wishes: Wishes) -> None:
    row = head(says, 2**62 - 1, wishes)
    assert read_head(row + b"pieces") == Said(says, wishes, 2**62 - 1)
    assert row.startswith(PLAIN) == (says is Says.GIVES and wishes == NO_WISHES)


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("wish", list(Wishes))
def test_what_one_rank_wants_all_hear(rank: int, wish: Wishes) -> None:
    said = {each: Said(Says.GIVES, wish if each == rank else NO_WISHES, 0) for each in range(3)}
    assert conclude(said, [DENSE]).wishes == wish


def test_wishes_of_several_ranks_are_all_heard() -> None:
    said = {0: Said(Says.SKIPS, Wishes.SAVE, 0), 1: Said(Says.GIVES, Wishes.STOP, 0)}
    outcome = conclude(said, [DENSE])
    assert outcome.wishes == Wishes.SAVE | Wishes.STOP
    assert (outcome.givers, outcome.first, outcome.active) == (1, 1, 2)
