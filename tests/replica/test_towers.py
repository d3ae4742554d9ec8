"""A model on several towers is the same model on one device: outputs, losses, gradients, trainings."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from ring_trainings import in_ring
from torch import Tensor, nn
from trainings import Net, adam, batch

from argosy.cluster.discover import discover
from argosy.entry import Replica
from argosy.errors import ConfigError
from argosy.modes import Sync
from argosy.replica.towers import Towers, choose_devices, split_sizes
from argosy.testing import LocalCluster

CPU = torch.device("cpu")


def alone() -> Replica:
    return Replica(discover({}, {}), None)


def made(model: nn.Module, towers: int) -> Towers:
    return alone().towers(model, ["cpu"] * towers)


@pytest.mark.parametrize(
    ("count", "towers", "sizes"),
    [(8, 2, [4, 4]), (7, 2, [4, 3]), (1, 2, [1]), (0, 2, [0]), (2, 4, [1, 1]), (10, 4, [3, 3, 2, 2])],
)
def test_a_batch_is_split_evenly(count: int, towers: int, sizes: list[int]) -> None:
    assert split_sizes(count, towers) == sizes


@pytest.mark.parametrize("towers", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 6, 7])
def test_gradients_are_those_of_the_whole_batch(towers: int, size: int) -> None:
    torch.manual_seed(0)
    model = Net().double()
    images, labels = batch(0, 0, size)
    images = images.clone().requires_grad_()
    F.mse_loss(model(images), labels).backward()
    expected = [images.grad, *(parameter.grad for parameter in model.parameters())]
    model.zero_grad()
    images.grad = None
    output = made(model, towers)(images)
    F.mse_loss(output, labels).backward()
    found = [images.grad, *(parameter.grad for parameter in model.parameters())]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine is not None
        assert theirs is not None
        assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-14)


class WithLoss(nn.Module):
    """Returns several things, one of them its own mean loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.unused = nn.Linear(2, 2)

    def forward(self, images: Tensor, *, labels: Tensor, scale: float) -> dict[str, Tensor]:
        output = self.net(images) * scale
        return {"loss": F.mse_loss(output, labels), "output": output}


def test_a_loss_of_the_towers_is_weighted_by_their_examples() -> None:
    torch.manual_seed(0)
    model = WithLoss().double()
    images, labels = batch(0, 0, 7)
    whole = model(images, labels=labels, scale=0.5)
    whole["loss"].backward()
    expected = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    split = made(model, 2)(images, labels=labels, scale=0.5)
    split["loss"].backward()
    assert torch.allclose(split["loss"], whole["loss"], rtol=1e-12)
    assert torch.allclose(split["output"], whole["output"], rtol=1e-12)
    for parameter, theirs in zip(model.parameters(), expected, strict=True):
        assert (parameter.grad is None) == (theirs is None)
        assert theirs is None or torch.allclose(parameter.grad, theirs, rtol=1e-12)  # type: ignore[arg-type]


def test_evaluation_and_frozen_models_need_no_graph() -> None:
    model = Net()
    towers = made(model, 2)
    with torch.no_grad():
        assert torch.allclose(towers(torch.ones(4, 6)), model(torch.ones(4, 6)))
    model.requires_grad_(False)
    assert not towers(torch.ones(4, 6)).requires_grad


def test_running_statistics_are_the_first_towers() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    twin = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    twin.load_state_dict(model.state_dict())
    images = torch.randn(8, 6)
    made(model, 2)(images).sum().backward()
    twin(images[:4])
    for mine, theirs in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7)


def test_an_error_in_a_tower_is_the_callers() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        made(Net(), 2)(torch.ones(4, 5))


def program(replica: Replica, towers: int, start: nn.Module) -> list[Tensor]:
    model = Net().double()
    model.load_state_dict(start.state_dict())  # the workers are threads, and draw from one generator
    split = replica.towers(model, ["cpu"] * towers)
    optimizer = replica.distribute(adam(model))
    with replica.session(model, optimizer) as session:
        for step in session.batches(iter(range(20))):
            images, labels = batch(step, replica.index, 5)
            optimizer.zero_grad()
            F.mse_loss(split(images), labels).backward()
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("kind", ["alone", "servers", "ring"])
def test_trainings_are_the_same_alone_with_servers_and_in_the_ring(kind: str) -> None:
    results = []
    start = Net().double()
    for towers in (1, 2):
        if kind == "alone":
            results.append([program(alone(), towers, start)])
        elif kind == "servers":
            results.append(LocalCluster(1, 2, Sync()).run(partial(program, towers=towers, start=start)))
        else:
            results.append(in_ring(2, partial(program, towers=towers, start=start)))
    for whole, split in zip(*results, strict=True):
        for mine, theirs in zip(whole, split, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_devices() -> None:
    assert choose_devices(["cpu", "cpu"], None) == [CPU, CPU]
    with pytest.raises(ConfigError, match="devices: expected at least one"):
        choose_devices([], None)
    if not torch.cuda.is_available():
        assert choose_devices(None, None) == [CPU]
        with pytest.raises(ConfigError, match="num_gpus: expected at most the 0 GPUs of this machine, got 2"):
            choose_devices(None, 2)
        with pytest.raises(ConfigError, match="devices: expected one of the 0 GPUs"):
            choose_devices(["cuda:0"], None)
