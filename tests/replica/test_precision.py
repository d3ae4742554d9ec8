"""Half precision with float32 masters, loss scaling, accumulation: where a step is more than a gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trainings import (
    Case,
    Net,
    adam,
    assert_identical,
    assert_same,
    batch,
    mean_loss,
    reference,
    sgd,
    state_of,
)
from ways import WAYS, Way, run

from argosy.entry import Replica
from argosy.modes import Sync
from argosy.protocol.decisions import Status
from argosy.testing import LocalCluster

STEPS = 50


def half_loss(model: nn.Module, step: int, worker: int) -> Tensor:
    images, labels = batch(step, worker, dtype=torch.bfloat16)
    return F.mse_loss(model(images), labels)


@pytest.mark.parametrize(("workers", "servers"), [(2, 1), (2, 3), (4, 2)])
def test_bfloat16_model_with_float32_masters(workers: int, servers: int) -> None:
    lr = 1e-3  # so small that a bfloat16 parameter alone would never move
    case = Case(dtype=torch.bfloat16)
    models = [case.make(seed) for seed in range(workers)]
    start = state_of(models[0])

    def program(replica: Replica) -> dict[str, Tensor]:
        model = models[replica.index]
        optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=lr))
        with replica.session(model, optimizer, last_step=STEPS) as session:
            for step in session.batches(range(STEPS)):
                optimizer.zero_grad()
                half_loss(model, step, replica.index).backward()
                optimizer.step()
        return state_of(model)

    states = LocalCluster(servers, workers, Sync()).run(program)
    assert_identical(states)
    assert all(value.dtype == torch.bfloat16 for value in states[0].values())
    assert_same(states[0], with_masters(case, workers, lr), rtol=0.008, atol=1e-4)  # one place of bfloat16
    assert any(not torch.equal(start[name], value) for name, value in states[0].items())


def with_masters(case: Case, workers: int, lr: float) -> dict[str, Tensor]:
    model = case.make(seed=0)
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=lr)
    for step in range(STEPS):
        for master in masters:
            master.grad = torch.zeros_like(master)
        for worker in range(workers):
            model.zero_grad()
            half_loss(model, step, worker).backward()
            for master, parameter in zip(masters, model.parameters(), strict=True):
                assert parameter.grad is not None
                assert master.grad is not None
                master.grad += parameter.grad.float() / workers
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
    return state_of(model)


@pytest.mark.parametrize("unscales", [False, True])
def test_grad_scaler_with_an_infinity(unscales: bool) -> None:
    """A worker whose scaler found an infinity skips; the step is the others', and nobody waits."""
    workers, bad = 3, {(1, 7), (1, 8), (0, 20)}

    def loss(model: nn.Module, step: int, worker: int) -> Tensor | None:
        return None if (worker, step) in bad else mean_loss(model, step, worker)

    case = Case(optimizer=adam, loss=loss)
    models = [case.make(seed) for seed in range(workers)]

    def program(replica: Replica) -> tuple[dict[str, Tensor], list[Status], float]:
        model = models[replica.index]
        optimizer = replica.distribute(adam(model))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=1000)
        statuses = []
        with replica.session(model, optimizer) as session:
            for step in session.batches(range(STEPS), epochs=1):
                optimizer.zero_grad()
                value = mean_loss(model, step, replica.index)
                if (replica.index, step) in bad:
                    value = value * float("inf")
                scaler.scale(value).backward()
                if unscales:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                statuses.append(optimizer.verdict.status)
        return state_of(model), statuses, scaler.get_scale()

    results = LocalCluster(2, workers, Sync()).run(program)
    assert_identical([state for state, _, _ in results])
    assert_same(results[0][0], reference(case, workers))
    for worker, (_, statuses, scale) in enumerate(results):
        skipped = {step for step, status in enumerate(statuses) if status == "skipped"}
        assert skipped == {step for w, step in bad if w == worker}
        assert scale == 2.0**12 / 2 ** len(skipped)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_loss_scale_that_grows_in_the_middle_of_an_accumulation(way: Way, overlap: bool) -> None:
    """It doubles with every second pass; each pass counts as much as every other all the same."""

    def program(replica: Replica) -> tuple[list[float], float]:
        weight, unused = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        optimizer = replica.distribute(torch.optim.SGD([weight, unused], lr=1.0), overlap=overlap)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        seen = []
        with replica.session(nn.ParameterList([weight, unused]), optimizer):
            for number in range(12):
                optimizer.zero_grad()
                scaler.scale((weight * (4.0**number + replica.index)).sum()).backward()
                verdict = scaler.step(optimizer, every=4 if number > 5 else 3)
                scaler.update()
                if verdict is not None and verdict.status == "applied":  # type: ignore[attr-defined]
                    seen.append(weight.item())
        return seen, scaler.get_scale()

    replicas = 1 if way == "alone" else 2
    shift = (replicas - 1) / 2
    sums = [sum(4.0**n + shift for n in passes) for passes in (range(3), range(3, 6), range(6, 10))]
    steps = [sums[0] / 3, sums[1] / 3, sums[2] / 4]
    expected = [-sum(steps[: n + 1]) for n in range(3)]
    for seen, scale in run(way, program):
        assert seen == pytest.approx(expected, rel=1e-6)
        assert scale == 4.0 * 2.0**6


@pytest.mark.parametrize("every", [2, 3])
def test_accumulation(every: int) -> None:
    workers = 3
    models = [Case().make(seed) for seed in range(workers)]

    def program(replica: Replica) -> dict[str, Tensor]:
        model = models[replica.index]
        optimizer = replica.distribute(adam(model))
        with replica.session(model, optimizer, last_step=STEPS) as session:
            for step in session.batches(range(STEPS * every)):
                optimizer.zero_grad()
                mean_loss(model, step, replica.index).backward()
                verdict = optimizer.step(every=every)
                assert verdict.status == ("applied" if step % every == every - 1 else "held")
            assert session.global_step == STEPS
        return state_of(model)

    states = LocalCluster(2, workers, Sync()).run(program)

    def whole(model: nn.Module, step: int, worker: int) -> Tensor:
        return torch.stack([mean_loss(model, step * every + part, worker) for part in range(every)]).mean()

    assert_identical(states)
    assert_same(states[0], reference(Case(optimizer=adam, loss=whole), workers))


def test_a_skip_in_the_middle_of_an_accumulation_forgets_it() -> None:
    model = Case().make(seed=0)

    def program(replica: Replica) -> list[Status]:
        optimizer = replica.distribute(sgd(model))
        statuses = []
        with replica.session(model, optimizer):
            before = state_of(model)
            mean_loss(model, 0, 0).backward()
            statuses.append(optimizer.step(every=2).status)
            statuses.append(optimizer.skip().status)
            assert_identical([before, state_of(model)])
            optimizer.zero_grad()
            assert all(p.grad is None for p in model.parameters())
            statuses.append(optimizer.step(every=2).status)
        return statuses

    assert LocalCluster(1, 1, Sync()).run(program) == [["held", "skipped", "held"]]


def test_a_closure_is_evaluated() -> None:
    model = Net()

    def program(replica: Replica) -> str:
        optimizer = replica.distribute(sgd(model))

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = mean_loss(model, 0, 0)
            loss.backward()
            return loss

        with replica.session(model, optimizer), torch.no_grad():
            return optimizer.step(closure).status

    assert LocalCluster(1, 1, Sync()).run(program) == ["applied"]
