"""Every collective against what torch makes of the same tensors in one process."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from threading import Event

import pytest
import torch
from rings import in_group
from torch import Tensor
from torch.distributed import HashStore

from argosy.errors import ConfigError, JobFailed, TaskLost, WaitTimeout
from argosy.ring import collectives
from argosy.ring.among_hosts import require_insecure
from argosy.ring.group import Membership, RingGroup
from argosy.ring.host_ranks import RanksByHost
from argosy.ring.reduction import Operation
from threads import in_threads

GRADIENTS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8]
SIZES = [0, 1, 2, 3, 15, 17, 1000, 4097]
RANKS = [1, 2, 3, 4, 5, 8]


def tensor(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * count + rank)
    if dtype.is_floating_point:
        return torch.randn(count, generator=generator, dtype=torch.float32).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 50, (count,), generator=generator).to(dtype)


def in_order(tensors: list[Tensor], mean: bool = False) -> Tensor:
    """The sum from the first to the last; half precision in float32, rounded once."""
    dtype = tensors[0].dtype
    narrow = dtype in (torch.float16, torch.bfloat16)
    total = reduce(torch.add, [each.float() if narrow else each for each in tensors])
    return (total / len(tensors) if mean else total).to(dtype)


@pytest.mark.parametrize("dtype", GRADIENTS, ids=str)
@pytest.mark.parametrize("ranks", RANKS)
def test_all_reduce_is_torchs_sum_bit_for_bit(ranks: int, dtype: torch.dtype) -> None:
    def program(group: RingGroup) -> list[Tensor]:
        given = [tensor(group.rank, count, dtype) for count in SIZES]
        means = [each.clone() for each in given]
        for each in given:
            group.all_reduce(each, "sum")
        for each in means:
            group.all_reduce(each, "mean")
        return given + means

    for results in in_group(ranks, program):
        for number, result in enumerate(results):
            count = SIZES[number % len(SIZES)]
            given = [tensor(rank, count, dtype) for rank in range(ranks)]
            assert torch.equal(result, in_order(given, mean=number >= len(SIZES))), count


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_all_reduce_of_many_chunks(monkeypatch: pytest.MonkeyPatch, ranks: int, dtype: torch.dtype) -> None:
    monkeypatch.setattr(collectives, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(collectives, "_WHOLE_BYTES", 8192)
    count = 123_457

    def program(group: RingGroup) -> Tensor:
        mine = tensor(group.rank, count, dtype)
        group.all_reduce(mine)
        return mine

    expected = in_order([tensor(rank, count, dtype) for rank in range(ranks)])
    assert all(torch.equal(result, expected) for result in in_group(ranks, program))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*GRADIENTS, *WHOLE], ids=str)
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_all_reduce_of_every_size_up_to_a_hundred_megabytes(ranks: int, dtype: torch.dtype) -> None:
    """Bit for bit torch's own additions in the order of the ranks; halves in float32, rounded once."""
    sizes = [65_535, 1_048_577, 10**8 // dtype.itemsize + 1]
    base = torch.arange(sizes[-1], dtype=torch.int32).remainder_(1009).sub_(504)

    def values(rank: int, count: int) -> Tensor:
        if dtype.is_floating_point:
            return (base[:count] * (0.1 + rank)).to(dtype)
        return (base[:count] + rank).to(dtype)

    def program(group: RingGroup) -> list[Tensor]:
        results = [values(group.rank, count) for count in sizes]
        for each in results:
            group.all_reduce(each)
        return results

    results = in_group(ranks, program)
    for number, count in enumerate(sizes):
        expected = in_order([values(rank, count) for rank in range(ranks)])
        assert all(torch.equal(each[number], expected) for each in results), count


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
@pytest.mark.parametrize("operation", ["sum", "product", "min", "max", "and", "or", "xor"])
def test_whole_numbers(operation: Operation, dtype: torch.dtype) -> None:
    functions: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "sum": torch.add,
        "product": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
        "and": torch.bitwise_and,
        "or": torch.bitwise_or,
        "xor": torch.bitwise_xor,
    }

    def program(group: RingGroup) -> Tensor:
        mine = tensor(group.rank, 333, dtype)
        group.all_reduce(mine, operation)
        return mine

    expected = reduce(functions[operation], [tensor(rank, 333, dtype) for rank in range(3)])
    assert all(torch.equal(result, expected) for result in in_group(3, program))


@pytest.mark.parametrize("count", [0, 1, 5, 1000])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_broadcast_gather_and_scatter(ranks: int, count: int) -> None:
    def program(group: RingGroup) -> None:
        for root in range(ranks):
            mine = tensor(group.rank, count, torch.float32)
            group.broadcast(mine, root)
            assert torch.equal(mine, tensor(root, count, torch.float32))
        mine = tensor(group.rank, count, torch.float32)
        outputs = [torch.empty(count) for _ in range(ranks)]
        group.all_gather(outputs, mine)
        assert all(torch.equal(out, tensor(rank, count, torch.float32)) for rank, out in enumerate(outputs))
        inputs = [tensor(10 * group.rank + to, count, torch.float32) for to in range(ranks)]
        out = torch.empty(count)
        group.reduce_scatter(out, inputs)
        given = [tensor(10 * rank + group.rank, count, torch.float32) for rank in range(ranks)]
        assert torch.equal(out, in_order(given))
        group.barrier()

    in_group(ranks, program)


def test_collectives_of_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "CHUNK_BYTES", 4096)
    test_broadcast_gather_and_scatter(3, 10_007)


def test_a_mixture_of_everything_stays_in_step() -> None:
    def program(group: RingGroup) -> list[float]:
        seen = []
        for turn in range(60):
            mine = torch.full((1 + 37 * (turn % 7),), float(group.rank + turn))
            if turn % 3 == 0:
                group.all_reduce(mine)
            elif turn % 3 == 1:
                group.broadcast(mine, turn % 4)
            else:
                group.barrier()
            seen.append(mine[-1].item())
        return seen

    results = in_group(4, program)
    assert all(seen[0::3] == results[0][0::3] and seen[1::3] == results[0][1::3] for seen in results)


# --- when somebody is missing -----------------------------------------------------------------------------
def test_a_failure_is_heard_by_all() -> None:
    def program(group: RingGroup) -> str:
        if group.rank == 1:
            group.board.fail("ValueError: boom")
            return ""
        with pytest.raises(JobFailed, match="/job:worker/task:1: ValueError: boom") as caught:
            group.barrier()
        return caught.value.task

    assert in_group(3, program) == ["/job:worker/task:1", "", "/job:worker/task:1"]


def test_who_does_not_come_is_named() -> None:
    store = HashStore()
    with pytest.raises(WaitTimeout, match="/job:worker/task:1") as caught:
        RingGroup(store, Membership(0, ("/job:worker/task:0", "/job:worker/task:1"), timeout=0.2))
    assert caught.value.missing == ("/job:worker/task:1",)


def test_who_stands_still_is_named() -> None:
    store = HashStore()
    over = Event()

    def program(rank: int) -> None:
        group = RingGroup(store, Membership(rank, ("a", "b"), timeout=0.5))
        try:
            if rank == 1:
                assert over.wait(30)
            else:
                with pytest.raises(WaitTimeout, match=r"makes no progress.*missing b"):
                    group.barrier()
                over.set()
        finally:
            group.close()

    in_threads(2, program)


def test_several_hosts_must_be_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"Gloo has neither key nor encryption.*--insecure"):
        require_insecure(RanksByHost(0, ((0, 1), (2,))), insecure=False)
    require_insecure(RanksByHost(0, ((0, 1), (2,))), insecure=True)
    require_insecure(RanksByHost(0, ((0, 1),)), insecure=False)


def test_who_leaves_too_early_is_named() -> None:
    def program(group: RingGroup) -> None:
        if group.rank == 0:
            with pytest.raises(TaskLost, match="lost /job:worker/task:1: it has left the ring"):
                group.barrier()

    in_group(2, program)
