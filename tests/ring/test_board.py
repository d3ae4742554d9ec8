"""Whoever sleeps is woken by the one it waits for, and does not wake up by itself."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from threading import Event

import pytest
import torch
from rings import in_group

from argosy.errors import ArgosyError, JobFailed, TaskLost
from argosy.ring import board as boards
from argosy.ring.board import Board
from argosy.ring.group import RingGroup
from argosy.shared_memory.bells import ring

# Longer than any of these waits: a nap that ends by itself is one that nobody ended.
NAP = 15_000


class Naps:
    """Stands before a board's poll: notes who ended each nap."""

    def __init__(self, poll: select.poll, asleep: Event) -> None:
        self._poll = poll
        self._asleep = asleep
        self.rung: list[bool] = []

    def poll(self, milliseconds: int) -> list[tuple[int, int]]:
        self._asleep.set()
        ready = self._poll.poll(milliseconds)
        self.rung.append(bool(ready))
        return ready

    def unregister(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)


@pytest.fixture(autouse=True)
def sleeps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "_NAP", NAP)
    monkeypatch.setattr(boards, "_LOOK", 0.0)


def naps_of(board: Board, asleep: Event) -> Naps:
    naps = Naps(board._poll, asleep)
    board._poll = naps  # type: ignore[assignment]
    return naps


def wake(act: Callable[[RingGroup], None], wait: Callable[[RingGroup], None]) -> list[bool]:
    """Who ended the naps of rank 0, which waits until rank 1 acts; that one first sees it asleep."""
    asleep = Event()

    def program(group: RingGroup) -> list[bool]:
        if group.rank == 1:
            assert asleep.wait(30)
            act(group)
            return []
        naps = naps_of(group.board, asleep)
        wait(group)
        return naps.rung

    return in_group(2, program)[0]


def test_who_comes_rings() -> None:
    began = time.monotonic()
    assert all(wake(RingGroup.barrier, RingGroup.barrier))
    assert time.monotonic() - began < NAP / 1000


def test_who_fails_rings() -> None:
    def wait(group: RingGroup) -> None:
        with pytest.raises(JobFailed, match="boom"):
            group.barrier()

    assert all(wake(lambda group: group.board.fail("boom"), wait))


def test_who_leaves_rings() -> None:
    def wait(group: RingGroup) -> None:
        with pytest.raises(TaskLost, match="it has left the ring"):
            group.barrier()

    assert all(wake(lambda group: group.board.leave(), wait))


def test_who_fails_after_what_is_waited_for_does_not_undo_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes and fails while the other, which has just seen it missing, looks who has failed."""
    monkeypatch.setattr(boards, "_NAP", 50)  # its one bell is heard by the first wait: the second one naps
    looks, has_failed = Event(), Event()

    def program(group: RingGroup) -> None:
        board = group.board
        if group.rank == 1:
            assert looks.wait(30)
            board.post(boards.ENTERED)
            board.fail("boom")
            has_failed.set()
            return
        look = board._failure

        def meanwhile(ready: Sequence[tuple[int, int]]) -> ArgosyError | None:
            looks.set()
            assert has_failed.wait(30)
            return look(ready)

        board._failure = meanwhile  # type: ignore[method-assign]
        ring(board._bells[0])
        board.wait(boards.ENTERED, 1)
        with pytest.raises(JobFailed, match="boom"):
            board.wait(boards.ENTERED, 2)

    in_group(2, program)


@pytest.mark.parametrize("ranks", [2, 3])
def test_no_nap_of_an_all_reduce_ends_by_itself(ranks: int) -> None:
    def program(group: RingGroup) -> list[bool]:
        naps = naps_of(group.board, Event())
        for count in (1, 1_200_000):
            group.all_reduce(torch.ones(count))
            if not all(naps.rung):
                break  # each further one would take as long
        return naps.rung

    assert all(all(rung) for rung in in_group(ranks, program))
