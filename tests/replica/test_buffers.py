"""A model's buffers in every way of working together: whose everybody gets, of every dtype."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from ways import Way, run

from argosy.entry import Replica


class Seen(nn.Module):
    """A number that is trained, and buffers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("real", torch.zeros(2))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("flag", torch.zeros(3, dtype=torch.bool))

    real: torch.Tensor
    count: torch.Tensor
    flag: torch.Tensor

    def see(self, worker: int) -> torch.Tensor:
        """What a forward pass leaves in the buffers; the loss."""
        self.real.fill_(float(worker))
        self.count.fill_(-3 - worker)
        self.flag[worker] = True
        return self.weight.sum()


@pytest.mark.parametrize("way", ["ring", "queue", "memory"])
def test_the_mean_of_real_numbers_and_of_all_others_the_largest(way: Way) -> None:
    def program(replica: Replica) -> list[list[float]]:
        model = Seen()
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        with replica.session(model, optimizer, buffers="mean"):
            model.see(replica.index).backward()
            optimizer.step()
            replica.barrier()
        return [model.real.tolist(), model.count.tolist(), model.flag.tolist()]

    for real, count, flag in run(way, program):
        assert real == [0.5, 0.5]
        assert count == [-3, -3]
        assert flag == [True, True, False]


@pytest.mark.parametrize("way", ["queue", "memory"])
def test_the_chiefs_are_everybodys_before_it_has_changed_one(way: Way) -> None:
    """Also one that another worker changes first, and while the chief changes only some of them."""

    def program(replica: Replica) -> list[tuple[float, int]]:
        model, seen = Seen(), []
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=1.0))
        with replica.session(model, optimizer):
            for step in range(3):
                optimizer.zero_grad()
                if replica.index:
                    model.see(replica.index).backward()
                else:
                    model.weight.sum().backward()
                    if step == 1:
                        model.real.fill_(7.0)
                    if step == 2:
                        model.count.fill_(7)
                optimizer.step()
                seen.append((model.real[0].item(), int(model.count[0])))
            replica.barrier()
        return seen

    assert run(way, program) == [[(0.0, 0), (7.0, 0), (7.0, 7)]] * 2
