"""Ordinary PyTorch programs on remote devices: optimizers, views, indexing, randomness, placement, memory."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from clusters import cluster_here, local_client
from torch import nn

import argosy
from argosy.errors import ConfigError, RemoteError, TaskLost

HERE = "/job:local/task:0"
PS, FIRST, SECOND = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(6, 12, generator=generator), torch.randint(0, 4, (6,), generator=generator))
        for _ in range(count)
    ]


def train(make: Any, steps: int = 4) -> tuple[nn.Module, list[float]]:
    torch.manual_seed(7)
    model = network()
    optimizer = make(model.parameters())
    losses = []
    for images, labels in batches(steps):

        def closure(images: torch.Tensor = images, labels: torch.Tensor = labels) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return model, losses


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Adamax": lambda p: torch.optim.Adamax(p),
    "NAdam": lambda p: torch.optim.NAdam(p),
    "RAdam": lambda p: torch.optim.RAdam(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "ASGD": lambda p: torch.optim.ASGD(p),
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=4),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_go_the_same_way(name: str) -> None:
    with local_client():
        expected, losses = train(OPTIMIZERS[name])
        with argosy.device(HERE):
            model, remote_losses = train(OPTIMIZERS[name])
        state = argosy.fetch(model.state_dict())
    assert remote_losses == losses
    assert all(torch.equal(state[name], value) for name, value in expected.state_dict().items())


def test_views_and_writes_in_place() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        row = x[1]
        row += 5
        x[:, 2] = -1.0
        x.view(-1)[3].mul_(10)
        transposed = x.t()
        transposed[0, 0] = 100
        x[x > 50] = 0
        picked = x[torch.tensor([0, 2]), 1:]
        halves = x.chunk(2, dim=1)
        halves[1].zero_()
        square = x[:3, :3].clone()
        square.t_()
        return [x, row, transposed, picked, square, x.nonzero(), x.unique(), *halves]

    start = torch.arange(12.0).reshape(3, 4)
    expected = program(start.clone())
    with local_client():
        results = argosy.fetch(program(argosy.place(start, HERE)))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(expected, results, strict=True))


def test_writing_to_what_autograd_needs_is_noticed() -> None:
    with local_client(), argosy.device(HERE):
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        z = (y * y).sum()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.bool, torch.complex64]
)
def test_dtypes_travel(dtype: torch.dtype) -> None:
    value = (torch.arange(6).reshape(2, 3) % 2).to(dtype)
    with local_client():
        there = argosy.place(value.t(), HERE)
        assert there.dtype == dtype
        assert there.stride() == (1, 3)
        assert torch.equal(there.cpu(), value.t())
        assert there.tolist() == value.t().tolist()


def test_random_numbers_follow_the_seed() -> None:
    def draw() -> list[torch.Tensor]:
        return [torch.rand(3), torch.randn(2, 2), torch.randperm(5), F.dropout(torch.ones(8), 0.5)]

    torch.manual_seed(11)
    expected = draw()
    with local_client(), argosy.device(HERE):
        torch.manual_seed(11)
        first = argosy.fetch(draw())
        other = argosy.fetch(draw())
        torch.manual_seed(11)
        again = argosy.fetch(draw())
        own = torch.rand(3, generator=torch.Generator().manual_seed(2)).cpu()
    assert all(torch.equal(a, b) for a, b in zip(expected, first, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert torch.equal(own, torch.rand(3, generator=torch.Generator().manual_seed(2)))


def test_ordinary_tensors_stay_ordinary() -> None:
    with local_client() as client:
        ordinary = torch.ones(3)
        assert type(ordinary + 1) is torch.Tensor
        there = argosy.place(ordinary, HERE)
        mixed = there + ordinary
        assert mixed.remote_device == "/job:local/task:0/cpu:0"  # type: ignore[attr-defined]
        ordinary.copy_(mixed)
        assert ordinary.tolist() == [2, 2, 2]
        assert "device='/job:local/task:0/cpu:0'" in repr(mixed)
        assert (float(mixed.sum()), bool((mixed == 2).all()), len(mixed)) == (6.0, True, 3)
        assert type(mixed.to("cpu")) is torch.Tensor
        with argosy.device(HERE), argosy.device(None):
            assert type(torch.ones(1)) is torch.Tensor
        assert client.devices() == ["/job:local/task:0/cpu:0"]


def test_what_is_dropped_is_freed() -> None:
    with local_client() as client:
        with argosy.device(HERE):
            kept = torch.ones(1000)
            for _ in range(50):
                kept = kept + 1
        assert float(kept[0]) == 51
        gc.collect()
        values, size = client.held(HERE)
        assert values <= 2
        assert size <= 8000


def test_modules_are_copied_moved_and_saved() -> None:
    with local_client():
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = copy.deepcopy(model.state_dict())
        argosy.place(model, HERE)
        assert all(
            p is q for p, q in zip(model.parameters(), optimizer.param_groups[0]["params"], strict=True)
        )
        twin = copy.deepcopy(model)
        F.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1]).backward()
        optimizer.step()
        assert all(torch.equal(v, before[k]) for k, v in argosy.fetch(twin.state_dict()).items())
        assert not torch.equal(argosy.fetch(model.state_dict())["0.weight"], before["0.weight"])
        twin.load_state_dict(model.state_dict())
        assert torch.equal(twin.state_dict()["0.weight"].cpu(), model.state_dict()["0.weight"].cpu())
        with pytest.raises(ConfigError, match=r"argosy\.fetch"):
            copy.copy(model[0].weight).__reduce_ex__(2)


# --- several tasks ----------------------------------------------------------------------------------------
def test_operations_run_where_they_are_told() -> None:
    with cluster_here(ps=1, worker=2) as target, argosy.connect(target, wait=20) as client:
        with argosy.device(PS):
            x = torch.ones(2, 2)
        with argosy.device(FIRST):
            y = x @ x
        with argosy.device(SECOND):
            z = y @ x + x
            with argosy.device("/job:ps"):
                total = z.sum()
        assert z.tolist() == [[5, 5], [5, 5]]
        assert total.item() == 20
        assert client.ran(PS) == {"aten::ones": 1, "aten::sum": 1}
        assert client.ran(FIRST) == {"aten::mm": 1}
        assert client.ran(SECOND) == {"aten::mm": 1, "aten::add.Tensor": 1}


def test_without_a_scope_the_bytes_decide() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20):
        small, large = argosy.place(torch.ones(1), FIRST), argosy.place(torch.ones(100), SECOND)
        assert (small + large).remote_device.startswith(SECOND)  # type: ignore[attr-defined]
        small += large.sum()  # what is written to stays where it is
        assert small.remote_device.startswith(FIRST)  # type: ignore[attr-defined]
        assert small.item() == 101


def test_gradients_run_where_their_forward_operation_ran() -> None:
    with cluster_here(ps=1, worker=1) as target, argosy.connect(target, wait=20) as client:
        with argosy.device(PS):
            weight = torch.ones(50, 50, requires_grad=True)
        with argosy.device(FIRST):
            loss = (torch.ones(2, 50) @ weight).relu().sum()
        with argosy.device(PS):  # wherever backward is called
            loss.backward()
        assert weight.grad is not None
        assert weight.grad.cpu().unique().tolist() == [2]
        assert "aten::mm" not in client.ran(PS)
        assert client.ran(FIRST)["aten::mm"] == 2
        assert client.ran(FIRST)["aten::threshold_backward"] == 1


def test_a_copy_is_made_anew_after_a_write() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20):
        x = argosy.place(torch.zeros(2), FIRST)
        sums = []
        for _ in range(3):
            x += 1
            with argosy.device(SECOND):
                sums.append(x.sum())
        assert [each.item() for each in sums] == [2, 4, 6]


# --- what goes wrong --------------------------------------------------------------------------------------
def test_an_error_names_the_line_and_the_task() -> None:
    with local_client() as client:
        index = argosy.place(torch.tensor([7]), HERE)
        table = argosy.place(torch.ones(3, 2), HERE)
        wrong = F.embedding(index, table)  # the line that made it
        dependent = (wrong + 1).sum()
        with pytest.raises(RemoteError, match="index out of range") as caught:
            dependent.item()
        assert "wrong = F.embedding(index, table)  # the line that made it" in str(caught.value)
        assert "Traceback (most recent call last)" in caught.value.trace
        assert caught.value.task == HERE
        assert table.sum().item() == 6  # what does not depend on it goes on
        client.synchronize()  # it was seen


def test_a_mistake_in_shapes_is_raised_at_once() -> None:
    with local_client(), argosy.device(HERE), pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_devices_that_are_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    with cluster_here(worker=1) as target:
        with argosy.connect(target, wait=20), pytest.raises(ConfigError, match="allow_soft_placement"):
            argosy.device("/gpu:0").__enter__()
        with argosy.connect(target, wait=20, allow_soft_placement=True):
            for _ in range(2):
                with argosy.device("/gpu:0"):
                    assert torch.ones(2).sum().item() == 2
            with pytest.raises(ConfigError, match="job of the cluster"):
                argosy.device("/job:ps").__enter__()
    assert capfd.readouterr().err.count("does not exist: operations placed there run on") == 1


def test_several_clients_share_a_cluster() -> None:
    with cluster_here(worker=1) as target:
        with argosy.connect(target, wait=20) as first, argosy.connect(target, wait=20) as second:
            with argosy.device("/cpu:0", client=first):
                x = torch.ones(2)
            with argosy.device("/cpu:0", client=second):
                y = torch.zeros(2)
            assert (x.sum().item(), y.sum().item()) == (2, 0)
            with pytest.raises(RuntimeError, match="another client"):
                x + y
        with pytest.raises(ConfigError, match="closed"):
            x.cpu()


def test_no_client_is_said() -> None:
    with pytest.raises(ConfigError, match=r"argosy\.connect"):
        argosy.device("/cpu:0").__enter__()


def test_towers_in_step_go_the_way_of_synchronous_replicas() -> None:
    """Parameters on a server, a tower a worker, the mean of the gradients applied once."""

    def updates(devices: list[str | None], server: str | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))
        if server is not None:
            argosy.place(model, server)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        data = iter(batches(12))

        def step(*towers: Any) -> None:
            found = []
            for device, (images, labels) in zip(devices, towers, strict=True):
                with argosy.device(device):
                    loss = F.cross_entropy(model(images), labels)
                found.append(torch.autograd.grad(loss, list(model.parameters())))
            for parameter, *gradients in zip(model.parameters(), *found, strict=True):
                parameter.grad = sum(gradients[1:], gradients[0]) / len(gradients)
            optimizer.step()

        if server is not None:
            step = argosy.capture(step)
        for _ in range(6):
            step(next(data), next(data))
        return argosy.fetch(list(model.state_dict().values()))

    expected = updates([None, None], None)
    with cluster_here(ps=1, worker=2) as target, argosy.connect(target, wait=20) as client:
        results = updates([FIRST, SECOND], PS)
        assert client.ran(FIRST)["aten::addmm"] == client.ran(SECOND)["aten::addmm"] == 12
        assert "aten::addmm" not in client.ran(PS)
    for mine, theirs in zip(expected, results, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_memory_does_not_grow() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20) as client:
        weight = argosy.place(torch.ones(8, 8), FIRST).requires_grad_()

        def step(x: torch.Tensor) -> torch.Tensor:
            with argosy.device(SECOND):
                loss = (x @ weight).relu().mean()
            (gradient,) = torch.autograd.grad(loss, weight)
            with torch.no_grad():
                weight.sub_(gradient, alpha=0.01)
            return loss.detach()

        captured = argosy.capture(step)
        held = []
        for _ in range(2):
            for _ in range(150):
                step(torch.ones(2, 8))
                loss = captured(torch.ones(2, 8))
            assert loss.item() < 8
            gc.collect()
            client.synchronize()
            held.append([client.held(task) for task in (FIRST, SECOND)])
        assert held[0] == held[1]


def test_a_client_that_is_cut_off_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """Of something that no client of ours sends; it must not wait for an answer that never comes."""
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20) as client:
        x = argosy.place(torch.ones(4), FIRST)
        y = argosy.place(torch.ones(4), SECOND)
        assert (x + 1).sum().item() == 8
        with client.lock:
            client.outboxes[FIRST].batch.append(10**9)  # an operation that nobody has defined
        with pytest.raises(TaskLost, match=f"lost {FIRST}: it has ended this client's session: KeyError"):
            x.sum().item()
        with pytest.raises(TaskLost, match=FIRST):
            x + 1
        assert y.sum().item() == 4
    assert "is disconnected" in capfd.readouterr().err
