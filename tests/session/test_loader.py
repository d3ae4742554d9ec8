"""Every replica's share of the data, epoch after epoch, and the place to go on from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from argosy.entry import Replica
from argosy.errors import ConfigError
from argosy.modes import Sync
from argosy.replica.loader import Loader
from argosy.session import own_state as own
from argosy.session.batch_feed import BatchFeed
from argosy.session.own_state import ReplicaState
from argosy.testing import LocalCluster
from local_ring import in_ring

NUMBERS = TensorDataset(torch.arange(23))


class Plain(Dataset[int]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> int:
        return index


def epoch(loader: Loader[Any]) -> list[list[int]]:
    return [(batch[0] if isinstance(batch, list) else batch).tolist() for batch in loader]


def loaders(count: int, dataset: Any = NUMBERS, **options: Any) -> list[Loader[Any]]:
    return [Loader(dataset, 4, 7, index, count, **options) for index in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_replicas_share_an_epoch_without_overlap(count: int) -> None:
    parts = [epoch(loader) for loader in loaders(count)]
    seen = [number for part in parts for batch in part for number in batch]
    assert sorted(seen) == list(range(23))
    assert [len(part) for part in parts] == [len(loader) for loader in loaders(count)]


def test_each_epoch_has_another_order_and_each_run_the_same() -> None:
    (one,), (other,) = loaders(1), loaders(1)
    first, second = epoch(one), epoch(one)
    assert first != second
    assert [epoch(other), epoch(other)] == [first, second]
    assert epoch(loaders(1, shuffle=False)[0])[0] == [0, 1, 2, 3]


def test_whole_batches_only() -> None:
    assert [len(batch) for batch in epoch(loaders(2, drop_last=True)[1])] == [4, 4]


def test_any_dataset_gives_the_same_and_leaves_the_generators_alone() -> None:
    before = torch.get_rng_state()
    fast, slow = loaders(2)[1], loaders(2, Plain())[1]
    assert [epoch(fast), epoch(fast)] == [epoch(slow), epoch(slow)]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("size", "dataset"), [(0, NUMBERS), (4, TensorDataset(torch.empty(0)))])
def test_what_has_no_batches_is_refused(size: int, dataset: Any) -> None:
    with pytest.raises(ConfigError, match=r"batch_size|dataset"):
        Loader(dataset, size, 0, 0, 1)


# --- going on ---------------------------------------------------------------------------------------------
def saved(feed: BatchFeed) -> ReplicaState:
    return own.decode(own.encode(ReplicaState(own.capture(), feed.position, [], feed.pass_random)))


def numbers(batch: Any) -> list[int]:
    found: list[int] = (batch[0] if isinstance(batch, list) else batch).tolist()
    return found


@pytest.mark.parametrize("stop", [0, 1, 5, 6, 7, 11, 12, 17])
@pytest.mark.parametrize("kind", ["own", "user"])
def test_a_resumed_run_sees_what_the_whole_run_would_have(stop: int, kind: str) -> None:
    def source() -> Any:
        return loaders(1)[0] if kind == "own" else DataLoader(NUMBERS, 4, shuffle=True)

    def take(feed: BatchFeed, count: int) -> list[list[int]]:
        taken: list[list[int]] = []

        def is_enough() -> bool:
            return len(taken) == count

        for batch in feed.batches(source(), 3, "skip", is_enough):
            taken.extend([[*numbers(batch), int(torch.randint(1000, ()))]])
        return taken

    torch.manual_seed(5)
    whole = take(BatchFeed(), 100)
    assert len(whole) == 18
    torch.manual_seed(5)
    first = BatchFeed()
    begin = take(first, stop)
    state = saved(first)
    torch.manual_seed(99)
    again = BatchFeed()
    own.restore(state.random)
    again.resume(state)
    assert begin + take(again, 100) == whole


def test_calls_that_had_ended_are_empty_when_resumed() -> None:
    def run(feed: BatchFeed, count: int) -> list[list[int]]:
        loader, taken = loaders(1)[0], list[list[int]]()
        for _ in range(3):  # epochs as many users write them
            for batch in feed.batches(loader, 1, "leave", lambda: len(taken) == count):
                taken.append(numbers(batch))
        return taken

    whole = run(BatchFeed(), 100)
    first = BatchFeed()
    begin = run(first, 8)
    again = BatchFeed()
    again.resume(saved(first))
    assert begin + run(again, 100) == whole
    assert len(whole) == 18


def test_a_loader_of_the_users_own_is_left_alone() -> None:
    first = BatchFeed()
    list(first.batches([[1], [2], [3]], 1, "leave", lambda: first.position.batch == 2))
    again = BatchFeed()
    again.resume(saved(first))
    assert list(again.batches([[1], [2], [3]], 1, "leave", lambda: False)) == [[1], [2], [3]]


@pytest.mark.parametrize("epochs", [[1, 1, 1], [2, 1], [1, 0, 2]])
def test_calls_one_after_the_other_see_what_one_call_sees(epochs: list[int]) -> None:
    def run(calls: list[int]) -> list[list[int]]:
        feed, loader = BatchFeed(), loaders(1)[0]
        return [numbers(b) for n in calls for b in feed.batches(loader, n, "leave", lambda: False)]

    assert run(epochs) == run([3])


def test_a_pass_that_is_broken_off_is_followed_by_the_next_one() -> None:
    feed, loader = BatchFeed(), loaders(1)[0]
    for batch in feed.batches(loader, None, "leave", lambda: False):
        assert numbers(batch) == epoch(loaders(1)[0])[0]
        break
    one = loaders(1)[0]
    epoch(one)
    assert [numbers(batch) for batch in feed.batches(loader, 1, "leave", lambda: False)] == epoch(one)


@pytest.mark.parametrize(("size", "count", "used"), [(2, 3, 2), (4, 2, 2), (1, 4, 3), (12, 1, 1)])
@pytest.mark.parametrize(("own_size", "own_count"), [(4, 1), (1, 2), (2, 2), (6, 2), (2, 3)])
def test_another_number_of_replicas_goes_on_at_the_same_place(
    size: int, count: int, used: int, own_size: int, own_count: int
) -> None:
    """The same samples are used and left, whoever deals them: 12 or 16 of 23 are used here."""
    order = [number for batch in epoch(Loader(NUMBERS, 1, 7, 0, 1)) for number in batch]
    left = []
    for index in range(own_count):
        before = BatchFeed()
        loader = Loader(NUMBERS, size, 7, index % count, count)
        list(before.batches(loader, 1, "leave", lambda feed=before: feed.position.batch == used))  # type: ignore[misc]
        again = BatchFeed()
        again.resume(saved(before))
        own_loader = Loader(NUMBERS, own_size, 7, index, own_count)
        left += [
            number for b in again.batches(own_loader, 1, "leave", lambda: False) for number in numbers(b)
        ]
    whole = used * size * count // (own_size * own_count) * own_size * own_count
    assert sorted(left) == sorted(order[whole:])


# --- on more replicas than before -------------------------------------------------------------------------
def scheduled(last_step: int, directory: Path, seen: list[tuple[int, int]]) -> Callable[[Replica], float]:
    """Trains on numbers, and notes which worker saw which; the rate at the end."""

    def program(replica: Replica) -> float:
        model = nn.Linear(1, 1).double()
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.5))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        loader = replica.loader(TensorDataset(torch.arange(24)), 2, seed=7)
        state = {"scheduler": scheduler}
        with replica.session(
            model, optimizer, directory=directory, last_step=last_step, state=state
        ) as session:
            for (batch,) in session.batches(loader):
                seen.extend((replica.index, number) for number in batch.tolist())
                optimizer.zero_grad()
                model(batch.double().view(-1, 1)).sum().backward()
                optimizer.step()
                scheduler.step()
        return float(optimizer.param_groups[0]["lr"])

    return program


@pytest.mark.parametrize("mode", ["sync", "ring"])
def test_a_new_replica_goes_on_where_the_chief_was(mode: str, tmp_path: Path) -> None:
    def train(workers: int, last_step: int) -> tuple[list[float], list[tuple[int, int]]]:
        seen: list[tuple[int, int]] = []
        program = scheduled(last_step, tmp_path, seen)
        if mode == "ring":
            return in_ring(workers, program), seen
        return LocalCluster(2, workers, Sync()).run(program), seen

    _, begin = train(2, 3)  # 12 of the 24
    rates, rest = train(3, 5)
    assert sorted(number for _, number in begin + rest) == list(range(24))
    assert {worker for worker, _ in rest} == {0, 1, 2}
    assert rates == [0.125] * 3
    _, again = train(2, 6)  # and one that has come and gone
    rates, _ = train(3, 8)
    assert rates == [0.03125] * 3
    assert len(again) == 4
