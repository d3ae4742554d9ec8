"""Memory of another process, lent for as long as a tensor in it lives."""

from __future__ import annotations

import os

import pytest
import torch

from argosy.errors import WireError
from argosy.remote.transport import borrowed_buffers as loans
from argosy.remote.transport.borrowed_buffers import Lender
from argosy.shared_memory.region import Region, offsets_of


class Slot:
    """Memory of a sender, the same memory as a receiver has it, and how often it was given back."""

    def __init__(self, size: int) -> None:
        self.region, descriptor = Region.create(size)
        self.returned = 0
        try:
            self.lender = Lender(Region.open(descriptor), self._give_back)
        finally:
            os.close(descriptor)

    def _give_back(self) -> None:
        self.returned += 1


def test_frames_lie_one_after_the_other_each_at_a_border_of_64_bytes() -> None:
    assert offsets_of([]) == ([], 0)
    assert offsets_of([1, 64, 0, 65]) == ([0, 64, 128, 128], 256)


def test_a_slot_is_given_back_with_the_last_frame_that_anybody_uses() -> None:
    slot = Slot(4096)
    slot.region.everything().fill_(7)
    first, second = slot.lender.lend([100, 200])
    assert first.tolist() == [7] * 100
    view = second[50:60]
    del first, second
    assert slot.returned == 0
    slot.region.everything().fill_(8)  # the same memory
    assert view.tolist() == [8] * 10
    del view
    assert slot.returned == 1


def test_an_empty_frame_borrows_nothing() -> None:
    slot = Slot(4096)
    (nothing,) = slot.lender.lend([0])
    assert nothing.numel() == 0
    assert slot.returned == 1


def test_memory_stays_mapped_while_it_is_read_even_without_its_lender() -> None:
    slot = Slot(4096)
    slot.region.everything().fill_(3)
    (frame,) = slot.lender.lend([10])
    slot.lender = Slot(4096).lender
    assert frame.tolist() == [3] * 10


def test_more_than_the_slot_holds_is_refused() -> None:
    slot = Slot(4096)
    with pytest.raises(WireError, match="at most 4096 bytes"):
        slot.lender.lend([4096, 1])


def test_beyond_the_limit_frames_are_copies_and_the_slot_is_free_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slot, other = Slot(4096), Slot(4096)
    monkeypatch.setattr(loans, "_MOST", loans._borrowed._bytes + 4096)
    (borrowed,) = slot.lender.lend([4000])
    other.region.everything().fill_(5)
    (copied,) = other.lender.lend([100])
    assert other.returned == 1
    other.region.everything().fill_(6)
    assert torch.equal(copied, torch.full((100,), 5, dtype=torch.uint8))
    del borrowed
    assert slot.returned == 1
    (again,) = other.lender.lend([100])
    assert other.returned == 1
    assert again.tolist() == [6] * 100
