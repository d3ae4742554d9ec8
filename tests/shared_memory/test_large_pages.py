"""Memory in large pages: the same to everybody who maps it, and large where the kernel has such pages."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

from argosy.shared_memory.large_pages import LARGE, empty_like, whole_pages
from argosy.shared_memory.region import Region


def kilobytes(address: int, field: str) -> int:
    """What the kernel says of the mapping at an address."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
            here = int(found[1], 16) <= address < int(found[2], 16)
        elif here and line.startswith(f"{field}:"):
            return int(line.split()[1])
    return 0


@pytest.mark.parametrize(
    ("size", "whole"),
    [(0, 0), (4096, 4096), (LARGE // 2 - 1, LARGE // 2 - 1), (LARGE // 2, LARGE), (LARGE, LARGE)],
)
def test_a_size_fills_its_pages_unless_it_is_small(size: int, whole: int) -> None:
    assert whole_pages(size) == whole
    assert whole_pages(5 * LARGE + 1) == 6 * LARGE


@pytest.mark.parametrize("large", [True, False])
def test_both_ends_see_the_same_memory(large: bool) -> None:
    mine, descriptor = Region.create(LARGE + 5, large_pages=large)
    theirs = Region.open(descriptor)
    os.close(descriptor)
    assert mine.size == theirs.size == (2 * LARGE if large else LARGE + 5)
    assert not large or not mine.address % LARGE
    mine.everything()[LARGE + 3] = 7
    theirs.words(2)[1] = 9
    assert theirs.everything()[LARGE + 3] == 7
    assert mine.words(2)[1] == 9
    assert mine.everything().sum() == 7 + 9
    mine.make_private()
    mine.everything().fill_(1)
    assert theirs.everything().sum() == 7 + 9


def test_shared_memory_lies_in_large_pages_at_both_ends() -> None:
    mine, descriptor = Region.create(LARGE, large_pages=True)
    theirs = Region.open(descriptor)
    os.close(descriptor)
    if not kilobytes(mine.address, "ShmemPmdMapped"):
        pytest.skip("this kernel does not gather shared memory into large pages (Linux 6.1 does)")
    theirs.everything().sum()
    assert kilobytes(theirs.address, "ShmemPmdMapped") == LARGE // 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_tensor_of_ones_own_is_like_any_other(dtype: torch.dtype) -> None:
    model = torch.zeros(3, LARGE // 4, dtype=dtype)
    tensors = [empty_like(model).fill_(number) for number in range(70)]
    assert all((tensor == number).all() for number, tensor in enumerate(tensors))
    assert {(tensor.shape, tensor.dtype) for tensor in tensors} == {(model.shape, dtype)}
    assert len({tensor.data_ptr() % LARGE for tensor in tensors[:8]}) == 8
    assert not any(tensor.data_ptr() % 64 for tensor in tensors)


def test_a_tensor_of_ones_own_lies_in_large_pages() -> None:
    tensor = empty_like(torch.zeros(LARGE // 4)).fill_(1.0)
    if not kilobytes(tensor.data_ptr(), "AnonHugePages"):
        pytest.skip("this kernel gives no large pages, or has none left")
    assert kilobytes(tensor.data_ptr(), "AnonHugePages") * 1024 >= LARGE


def test_a_small_tensor_takes_no_page_of_its_own() -> None:
    tensor = empty_like(torch.zeros(LARGE // 8 - 1))
    assert tensor.untyped_storage().nbytes() == LARGE // 2 - 4
