"""Memory of another process, borrowed for as long as a tensor in it lives."""

from __future__ import annotations

import os

import pytest
import torch

from argosy.errors import WireError
from argosy.remote.transport import borrowed_buffers
from argosy.remote.transport.borrowed_buffers import PeerBuffer
from argosy.shared_memory.region import Region, offsets_of


class SenderAndReceiver:
    """Memory of a sender, the same memory as a receiver has it, and how often it was given back."""

    def __init__(self, size: int) -> None:
        self.region, descriptor = Region.create(size)
        self.returned = 0
        try:
            self.received = PeerBuffer(Region.open(descriptor), self._acknowledge)
        finally:
            os.close(descriptor)

    def _acknowledge(self) -> None:
        self.returned += 1


def test_frames_lie_one_after_the_other_each_at_a_border_of_64_bytes() -> None:
    assert offsets_of([]) == ([], 0)
    assert offsets_of([1, 64, 0, 65]) == ([0, 64, 128, 128], 256)


def test_a_buffer_is_given_back_with_the_last_frame_that_anybody_uses() -> None:
    buffer = SenderAndReceiver(4096)
    buffer.region.everything().fill_(7)
    first, second = buffer.received.borrow([100, 200])
    assert first.tolist() == [7] * 100
    view = second[50:60]
    del first, second
    assert buffer.returned == 0
    buffer.region.everything().fill_(8)  # the same memory
    assert view.tolist() == [8] * 10
    del view
    assert buffer.returned == 1


def test_an_empty_frame_borrows_nothing() -> None:
    buffer = SenderAndReceiver(4096)
    (nothing,) = buffer.received.borrow([0])
    assert nothing.numel() == 0
    assert buffer.returned == 1


def test_memory_stays_mapped_while_it_is_read_even_without_its_lender() -> None:
    buffer = SenderAndReceiver(4096)
    buffer.region.everything().fill_(3)
    (frame,) = buffer.received.borrow([10])
    buffer.received = SenderAndReceiver(4096).received
    assert frame.tolist() == [3] * 10


def test_more_than_the_buffer_holds_is_refused() -> None:
    buffer = SenderAndReceiver(4096)
    with pytest.raises(WireError, match="at most 4096 bytes"):
        buffer.received.borrow([4096, 1])


def test_beyond_the_limit_frames_are_copies_and_the_buffer_is_free_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer, other = SenderAndReceiver(4096), SenderAndReceiver(4096)
    monkeypatch.setattr(borrowed_buffers, "_MOST", borrowed_buffers._borrowed._bytes + 4096)
    (borrowed,) = buffer.received.borrow([4000])
    other.region.everything().fill_(5)
    (copied,) = other.received.borrow([100])
    assert other.returned == 1
    other.region.everything().fill_(6)
    assert torch.equal(copied, torch.full((100,), 5, dtype=torch.uint8))
    del borrowed
    assert buffer.returned == 1
    (again,) = other.received.borrow([100])
    assert other.returned == 1
    assert again.tolist() == [6] * 100
