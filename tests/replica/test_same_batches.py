"""Workers that train on the same batches are told of it once; others are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
import torch
from ring_trainings import in_ring
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from argosy.entry import Replica
from argosy.modes import Async, Mode, Ring, Sync
from argosy.session.batch_checksum import checksum
from argosy.testing import LocalCluster

DATA = TensorDataset(torch.arange(60.0).view(30, 2))
Loader = Callable[[Replica], Iterable[list[torch.Tensor]]]


def seeded(seed: int) -> Iterable[list[torch.Tensor]]:
    return DataLoader(DATA, 3, shuffle=True, generator=torch.Generator().manual_seed(seed))


def run(mode: Mode, workers: int, loader: Loader, evaluates: bool = False) -> None:
    def program(replica: Replica) -> None:
        model = nn.Linear(2, 1)
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1e-6))
        with replica.session(model, optimizer) as session:
            if evaluates:
                for (batch,) in session.batches(DataLoader(DATA, 3), epochs=1):
                    model(batch)
            for (batch,) in session.batches(loader(replica), epochs=1):
                optimizer.zero_grad()
                model(batch).mean().backward()
                optimizer.step()
            replica.barrier()

    if isinstance(mode, Ring):
        in_ring(workers, program)
    else:
        LocalCluster(1, workers, mode).run(program)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "same batches" in line]


@pytest.mark.parametrize("mode", [Sync(), Async(), Ring()], ids=lambda mode: type(mode).__name__)
@pytest.mark.parametrize("workers", [2, 3])
def test_a_fixed_seed_is_told_once(mode: Mode, workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    run(mode, workers, lambda replica: seeded(7))
    (line,) = said(capsys)
    for part in ("/job:worker/task:", "replica.seed(n)", "replica.loader("):
        assert part in line


LOADERS: dict[str, Loader] = {
    "a seed each": lambda replica: seeded(replica.index),
    "replica.loader": lambda replica: replica.loader(cast(Any, DATA), 3, seed=7),
    "one batch only": lambda replica: [[torch.ones(3, 2)]] * 6,
    "too few": lambda replica: [[torch.ones(3, 2)], [torch.zeros(3, 2)]],
}


@pytest.mark.parametrize("mode", [Sync(), Async(), Ring()], ids=lambda mode: type(mode).__name__)
@pytest.mark.parametrize("loader", LOADERS)
def test_no_false_alarm(mode: Mode, loader: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(mode, 2, LOADERS[loader], evaluates=True)
    assert not said(capsys)


def test_the_checksum_of_a_batch() -> None:
    one, other = torch.arange(5000.0), torch.arange(5000.0)
    assert checksum([one, {"text": "a"}]) == checksum([other, {"text": "a"}])
    other[:3000] += 1
    assert checksum([one]) != checksum([other])
    assert checksum([one, {"text": "a"}]) != checksum([one, {"text": "b"}])
    assert checksum(one.view(50, 100)) != checksum(one.view(100, 50))
    assert checksum(7) is None
    assert checksum([1, 2.0, None]) is None
    assert checksum(torch.ones(3).to_sparse()) is not None
    assert checksum(one.numpy()) == checksum(one)
