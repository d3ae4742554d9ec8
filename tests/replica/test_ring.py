"""Training in the ring is the training of one process on the mean gradient, the same bits in every worker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ring_trainings import in_ring, train_ring
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import Store
from trainings import Case, Net, adam, assert_identical, assert_same, batch, mean_loss, of, reference, sgd

from argosy.entry import Replica
from argosy.errors import JobFailed, ModelMismatch
from argosy.modes import Ring
from argosy.replica import averaging
from argosy.ring import member

OPTIMIZERS = {
    "sgd": sgd,
    "momentum": of(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "adam": adam,
    "adamw": of(torch.optim.AdamW, lr=0.01, weight_decay=0.1, amsgrad=True),
    "fused": of(torch.optim.Adam, lr=0.01, fused=True),
    "rmsprop": of(torch.optim.RMSprop, lr=0.01),
    "adagrad": of(torch.optim.Adagrad, lr=0.05),
    "adadelta": of(torch.optim.Adadelta, lr=0.5),
    "adamax": of(torch.optim.Adamax, lr=0.01),
    "nadam": of(torch.optim.NAdam, lr=0.01),
    "radam": of(torch.optim.RAdam, lr=0.01),
    "asgd": of(torch.optim.ASGD, lr=0.05),
    "rprop": of(torch.optim.Rprop, lr=0.01),
    "adafactor": of(torch.optim.Adafactor, lr=0.01),
}


def check(case: Case, workers: int) -> None:
    states = train_ring(case, workers)
    assert_identical(states)
    assert_same(states[0], reference(case, workers), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_of_torch(optimizer: str) -> None:
    check(Case(optimizer=OPTIMIZERS[optimizer], steps=15), 2)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("overlap", [True, False])
def test_any_number_of_workers(workers: int, overlap: bool) -> None:
    check(Case(optimizer=adam, options={"overlap": overlap}), workers)


def test_many_small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaging, "BUCKET_BYTES", 128)
    check(Case(optimizer=adam), 3)


def test_parameter_groups_and_a_scheduler() -> None:
    def groups(model: nn.Module) -> torch.optim.Optimizer:
        first, *rest = list(model.parameters())
        parts: list[dict[str, Any]] = [{"params": [first], "lr": 0.01}, {"params": rest}]
        return torch.optim.SGD(parts, lr=0.1)

    check(
        Case(optimizer=groups, scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 5)), 2
    )


def test_clipping_after_backward_clips_the_mean() -> None:
    mean = Case(own_clip=0.05, steps=20)
    states = train_ring(mean, 3)
    assert_identical(states)
    assert_same(states[0], reference(Case(clip_norm=0.05, steps=20), 3))
    check(Case(clip_norm=0.05, steps=20), 3)


class Branches(nn.Module):
    """The left branch is used in even steps only, by worker 1 only in every fourth; the idle one never."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.idle = nn.Linear(6, 2), nn.Linear(6, 2), nn.Linear(6, 2)


def branch_loss(model: nn.Module, step: int, worker: int) -> Tensor:
    assert isinstance(model, Branches)
    images, labels = batch(step, worker)
    uses = step % 2 == 0 and (worker != 1 or step % 4 == 0)
    return F.mse_loss((model.left if uses else model.right)(images), labels)


def test_unused_parameters() -> None:
    check(Case(model=Branches, optimizer=of(torch.optim.AdamW, lr=0.01), loss=branch_loss), 3)


def test_frozen_parameters_and_thawing() -> None:
    def thaw(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        next(model.parameters()).requires_grad_(step >= 10)

    check(Case(before_step=thaw, steps=20), 2)


def test_a_model_in_bfloat16() -> None:
    case = Case(dtype=torch.bfloat16, steps=20)
    states = train_ring(case, 2)
    assert_identical(states)
    assert_same(states[0], reference(case, 2), rtol=0.05, atol=0.05)


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.mark.parametrize("buffers", ["chief", "mean"])
def test_buffers(buffers: str) -> None:
    check(Case(model=Normed, buffers="mean" if buffers == "mean" else "chief", steps=10), 2)


def test_a_worker_may_skip() -> None:
    def loss(model: nn.Module, step: int, worker: int) -> Tensor | None:
        return None if (step + worker) % 3 == 0 else mean_loss(model, step, worker)

    check(Case(loss=loss, steps=20), 2)


def test_parameters_that_come_later() -> None:
    def add(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == 5:
            optimizer.add_param_group({"params": list(model.children())[-1].parameters(), "lr": 0.02})

    def half(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(model.parameters())[:-2], lr=0.1)

    check(Case(optimizer=half, before_step=add, steps=10), 2)


def accumulated(replica: Replica, how: str, start: nn.Module) -> list[Tensor]:
    model = Net().double()
    model.load_state_dict(start.state_dict())  # the workers are threads, and draw from one generator
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = replica.distribute(inner)
    statuses = []
    with replica.session(model, optimizer):
        for step in range(12):
            last = step % 3 == 2
            if how == "every":
                optimizer.zero_grad()
                mean_loss(model, step, replica.index).backward()
                statuses.append(optimizer.step(every=3).status)
            elif last:
                (mean_loss(model, step, replica.index) / 3).backward()
                optimizer.step()
                optimizer.zero_grad()
            else:
                with optimizer.no_sync():
                    (mean_loss(model, step, replica.index) / 3).backward()
    assert how != "every" or statuses == ["held", "held", "applied"] * 4
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("how", ["every", "no_sync"])
def test_accumulation(how: str) -> None:
    model = Net().double()
    results = in_ring(2, lambda replica: accumulated(replica, how, model))
    for step in range(0, 12, 3):
        model.zero_grad()
        losses = [mean_loss(model, step + part, worker) for part in range(3) for worker in range(2)]
        torch.stack(losses).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.1)
    for mine, other, expected in zip(*results, model.parameters(), strict=True):
        assert torch.equal(mine, other)
        assert torch.allclose(mine, expected, rtol=1e-9, atol=1e-12)


def test_gradients_made_by_hand() -> None:
    def program(replica: Replica) -> float:
        weight = nn.Parameter(torch.zeros(3))
        optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
        for _ in range(4):
            weight.grad = torch.full((3,), replica.index + 1.0)
            optimizer.step()
        return weight[0].item()

    assert in_ring(3, program) == [-8.0] * 3


def until_out_of_data(replica: Replica, batches: int) -> tuple[int, float]:
    """Train on so many batches, with index + 1 as the gradient of each: the last step, and the weight."""
    weight = nn.Parameter(torch.zeros(3))
    optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
    with replica.session(nn.ParameterList([weight]), optimizer) as session:
        for _ in session.batches(iter(range(batches))):
            optimizer.zero_grad()
            (weight * (replica.index + 1)).sum().backward()
            optimizer.step()
    return session.global_step, weight[0].item()


def test_who_runs_out_of_data_leaves_and_nobody_hangs() -> None:
    ends = in_ring(3, lambda replica: until_out_of_data(replica, 2 + 3 * replica.index))
    # The means: of 1, 2 and 3 twice, then of 2 and 3 three times, then 3 alone.
    assert ends == [(2, -4.0), (5, -11.5), (8, -20.5)]


def test_the_last_step_ends_all() -> None:
    def program(replica: Replica) -> tuple[int, str]:
        model = Net()
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer, last_step=5) as session:
            for step in session.batches(range(100)):
                optimizer.zero_grad()
                mean_loss(model, step, replica.index).backward()
                optimizer.step()
        return session.global_step, optimizer.step().status

    assert in_ring(2, program) == [(5, "dropped")] * 2


def test_two_optimizers_in_one_loop() -> None:
    def program(replica: Replica) -> list[Tensor]:
        torch.manual_seed(replica.index)
        models = [Net(), Net()]
        optimizers = [replica.distribute(torch.optim.Adam(model.parameters())) for model in models]
        for step in range(5):
            for optimizer in optimizers:
                optimizer.zero_grad()
            torch.add(*(mean_loss(model, step, replica.index) for model in models)).backward()
            for optimizer in optimizers:
                optimizer.step()
        return [parameter.detach().clone() for model in models for parameter in model.parameters()]

    first, second = in_ring(2, program)
    # Without a session the training begins at the first step, with the chief's values then.
    assert all(torch.equal(mine, other) for mine, other in zip(first, second, strict=True))


def test_small_values() -> None:
    def program(replica: Replica) -> tuple[object, object, int, int, bool]:
        replica.barrier()
        gathered = replica.gather({"worker": replica.index, "text": "x" * 100 * replica.index})
        assert isinstance(replica.mode, Ring)
        return (
            gathered[2]["worker"],
            replica.broadcast(f"from {replica.index}"),
            replica.count,
            replica.index,
            replica.is_chief,
        )

    assert in_ring(3, program) == [(2, "from 0", 3, index, index == 0) for index in range(3)]


# --- what goes wrong --------------------------------------------------------------------------------------
def test_another_model_is_refused() -> None:
    def program(replica: Replica) -> None:
        model = nn.Linear(3, 2 + replica.index)
        replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1)).step()

    with pytest.raises(ModelMismatch, match="as the chief has"):
        in_ring(2, program)


def test_an_error_in_one_worker_is_heard_by_all() -> None:
    heard: list[str] = []

    def program(replica: Replica) -> None:
        model = Net().double()
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        try:
            with replica.session(model, optimizer):
                for step in range(10):
                    if step == 4 and replica.index == 1:
                        raise ValueError("boom")
                    optimizer.zero_grad()
                    mean_loss(model, step, replica.index).backward()
                    optimizer.step()
        except JobFailed as error:
            heard.append(f"{error.task} {error.reason}")

    with pytest.raises(ValueError, match="boom"):
        in_ring(3, program)
    assert heard == ["/job:worker/task:1 ValueError: boom"] * 2


def test_a_backward_pass_that_was_broken_off() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(context: object, value: Tensor) -> Tensor:
            return value.clone()

        @staticmethod
        def backward(context: object, gradient: Tensor) -> Tensor:
            raise RuntimeError("broken")

    broken: Callable[[Tensor], Tensor] = Broken.apply

    def program(replica: Replica) -> Tensor:
        torch.manual_seed(0)
        model = Net().double()
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        with replica.session(model, optimizer):
            images, labels = batch(0, replica.index)
            hidden = model[0](images)
            with pytest.raises(RuntimeError, match="broken"):
                F.mse_loss(model[4](model[2](broken(hidden))), labels).backward()
            optimizer.zero_grad()
            mean_loss(model, 0, replica.index).backward()
            optimizer.step()
        return torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])

    first, second = in_ring(2, program)
    assert torch.equal(first, second)


def test_complex_parameters() -> None:
    def program(replica: Replica) -> Tensor:
        weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
        with replica.session(nn.ParameterList([weight]), optimizer):
            weight.grad = torch.full((3,), complex(replica.index, 1 - replica.index))
            optimizer.step()
        return weight.detach()

    for weight in in_ring(3, program):
        assert torch.equal(weight, torch.full((3,), complex(-1, 0)))


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the parameters were on devices, with Gloo in the place of NCCL."""

    def gloo(store: Store, rank: int, size: int) -> object:
        return dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=30))

    monkeypatch.setattr(member, "for_tensors", lambda *_: "NCCL")
    monkeypatch.setattr(member, "device_group", gloo)


@pytest.mark.usefixtures("on_a_device")
@pytest.mark.parametrize(
    "what",
    [test_unused_parameters, test_a_worker_may_skip, test_frozen_parameters_and_thawing],
)
def test_the_way_of_devices(what: Callable[[], None]) -> None:
    what()


@pytest.mark.usefixtures("on_a_device")
@pytest.mark.parametrize("buffers", ["chief", "mean"])
def test_buffers_the_way_of_devices(buffers: str) -> None:
    test_buffers(buffers)


@pytest.mark.usefixtures("on_a_device")
def test_who_runs_out_of_data_stays_the_way_of_devices() -> None:
    ends = in_ring(2, lambda replica: until_out_of_data(replica, 2 + 2 * replica.index))
    # Means of 1 and 2 for two steps, then 2 alone: all end alike.
    assert [weight for _, weight in ends] == [-7.0, -7.0]
