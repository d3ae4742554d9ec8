"""A group over two hosts, with Gloo between them: ranks in threads, some of which say they are elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore

from argosy.errors import ConfigError
from argosy.ring import host_ranks
from argosy.ring.buckets import BucketItem, fill
from argosy.ring.group import Membership
from argosy.ring.member import RingMember
from argosy.ring.notes import RoundOutcome, Says
from argosy.ring.rounds import Rounds
from threads import in_threads

T = TypeVar("T")
NARROW = [torch.bfloat16, torch.float16]
# The host of each rank. A host's sum is made first, then that of the hosts.
PLACES = ["112", "1122", "12"]


@pytest.fixture
def across(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[RingMember], T]], list[T]]:
    """Runs a program as so many members of a ring, each on its host."""
    here = threading.local()
    monkeypatch.setattr(host_ranks, "whereabouts", lambda: here.host)

    def run(places: str, program: Callable[[RingMember], T]) -> list[T]:
        store = HashStore()
        names = tuple(f"rank {rank}" for rank in range(len(places)))

        def rank(number: int) -> T:
            here.host = places[number].encode()
            member = RingMember(store, Membership(number, names, timeout=30, insecure=True))
            try:
                return program(member)
            finally:
                member.leave()

        return in_threads(len(places), rank)

    return run


Across = Callable[[str, Callable[[RingMember], object]], list[object]]


def values(rank: int, count: int = 1000) -> Tensor:
    """Numbers whose sums are rounded in half precision."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(count, generator=generator)


def by_hosts(places: str, given: list[Tensor]) -> list[Tensor]:
    """The float32 sum of each host, in the order of the ranks."""
    sums: dict[str, Tensor] = {}
    for place, each in zip(places, given, strict=True):
        sums[place] = sums[place] + each.float() if place in sums else each.float()
    return list(sums.values())


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("places", PLACES)
def test_half_precision_is_rounded_once_and_not_on_every_host(
    across: Across, places: str, dtype: torch.dtype
) -> None:
    given = [values(rank).to(dtype) for rank in range(len(places))]
    first, second = by_hosts(places, given)
    expected = (first + second).to(dtype)
    mean = ((first + second) / len(places)).to(dtype)
    if len(places) > 2:  # else these values could not tell
        assert not torch.equal(expected, first.to(dtype) + second.to(dtype))

    def program(member: RingMember) -> None:
        for operation, result in (("sum", expected), ("mean", mean)):
            mine = given[member.rank].clone()
            member.group.all_reduce(mine, operation)  # type: ignore[arg-type]
            assert torch.equal(mine, result)

    across(places, program)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("places", PLACES)
def test_gradients_in_half_precision_are_summed_in_float32(
    across: Across, places: str, dtype: torch.dtype
) -> None:
    given = [values(rank).to(dtype) for rank in range(len(places))]
    first, second = by_hosts(places, given)
    expected = (first + second) / len(places)
    assert not torch.equal(expected, (first.to(dtype) + second.to(dtype)).float() / len(places))
    for result in across(places, lambda member: mean_of(member, given[member.rank], None)):
        assert isinstance(result, Tensor)
        assert torch.equal(result.float(), expected)


@pytest.mark.parametrize("wire", NARROW, ids=str)
@pytest.mark.parametrize("places", [*PLACES, "123", "11223"])
def test_only_what_travels_is_in_the_dtype_of_the_wire(
    across: Across, places: str, wire: torch.dtype
) -> None:
    given = [values(rank) for rank in range(len(places))]
    sent = [each.to(wire).float() for each in by_hosts(places, given)]
    expected = sum(sent, torch.zeros(1000)).to(wire).float() / len(places)
    for result in across(places, lambda member: mean_of(member, given[member.rank], wire)):
        assert isinstance(result, Tensor)
        assert torch.equal(result, expected)


def mean_of(member: RingMember, mine: Tensor, wire: torch.dtype | None) -> Tensor:
    """Of one round in which everybody gives something."""
    item = BucketItem(mine.numel(), mine.dtype, mine.element_size())
    rounds = member.open_rounds(fill([item], 2**20), wire)
    assert isinstance(rounds, Rounds)
    taken = []

    def take(bucket: int, outcome: RoundOutcome) -> None:
        assert outcome.givers == member.group.size
        taken.append(rounds.result(bucket)[: mine.numel()].clone())

    rounds.begin(Says.GIVES, 0)
    rounds.given(0)[: mine.numel()].copy_(mine)
    rounds.enter()
    rounds.finish(take)
    return taken[0]


@pytest.mark.parametrize("places", PLACES)
def test_every_collective_over_hosts(across: Across, places: str) -> None:
    size = len(places)

    def program(member: RingMember) -> None:
        group = member.group
        for root in range(size):
            mine = values(group.rank)
            group.broadcast(mine, root)
            assert torch.equal(mine, values(root))
            total = torch.full((5,), float(group.rank))
            group.all_reduce(total, "max", root)
            assert total[0] == (size - 1 if group.rank == root else group.rank)
        outputs = [torch.empty(1000) for _ in range(size)]
        group.all_gather(outputs, values(group.rank))
        assert all(torch.equal(output, values(rank)) for rank, output in enumerate(outputs))
        sizes = [3 * rank for rank in range(size)]
        out = torch.empty(sizes[group.rank])
        group.reduce_scatter(out, [torch.full((count,), 1.0 + to) for to, count in enumerate(sizes)])
        assert torch.equal(out, torch.full_like(out, size * (1.0 + group.rank)))
        taken = [torch.empty(rank + group.rank) for rank in range(size)]
        group.exchange(taken, [torch.full((rank + group.rank,), float(group.rank)) for rank in range(size)])
        assert all(torch.equal(each, torch.full_like(each, rank)) for rank, each in enumerate(taken))
        group.barrier()

    across(places, program)


@pytest.mark.parametrize("places", PLACES)
def test_calls_that_do_not_fit_together_are_refused_on_every_host(across: Across, places: str) -> None:
    size = len(places)

    def program(member: RingMember) -> None:
        group = member.group
        for odd in range(size):
            mine = torch.ones(3 + (group.rank == odd))
            with pytest.raises(
                ConfigError, match=r"all_reduce\(sum\) of 3 .*all_reduce\(sum\) of 4 |of 4 .*of 3"
            ):
                group.all_reduce(mine)
            # One rank has arguments that cannot work; it waits for nobody, and all others hear why.
            if group.rank == odd:
                group.refuse("barrier", "a reason")
            else:
                with pytest.raises(ConfigError, match="a reason"):
                    group.barrier()
            total = torch.ones(2)
            group.all_reduce(total)
            assert total[0] == size

    across(places, program)
