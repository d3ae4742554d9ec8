"""A step of the ring is the same on every worker, whoever skips, scales, clips or accumulates."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ring_trainings import in_ring
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import Store

from argosy.entry import Replica
from argosy.errors import ArgosyError, ConfigError
from argosy.replica import averaging
from argosy.replica.optimizer import DistributedOptimizer
from argosy.ring import member


def one_weight(replica: Replica, **options: Any) -> tuple[nn.Parameter, DistributedOptimizer]:
    weight = nn.Parameter(torch.zeros(1))
    return weight, replica.distribute(torch.optim.SGD([weight], lr=1.0), **options)


def give(weight: nn.Parameter, gradient: float) -> None:
    (weight * gradient).sum().backward()


# --- skipping ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("session", [True, False])
def test_who_skips_steps_as_those_who_accumulate(overlap: bool, session: bool) -> None:
    def program(replica: Replica) -> float:
        weight, optimizer = one_weight(replica, overlap=overlap)

        def train() -> None:
            for turn in range(3):
                if replica.index == 1 and turn != 1:
                    assert optimizer.skip().status == "skipped"
                    continue
                for _ in range(2):
                    optimizer.zero_grad()
                    give(weight, 1.0)
                    verdict = optimizer.step(every=2)
                assert verdict.status == "applied"

        if session:
            with replica.session(nn.ParameterList([weight]), optimizer):
                train()
        else:
            train()
        return weight.item()

    assert in_ring(2, program) == [-3.0, -3.0]


@pytest.mark.parametrize("overlap", [True, False])
def test_who_skips_steps_with_the_unscaled_gradient(overlap: bool) -> None:
    """An infinity on worker 1: on its own if gradients are averaged in `step`, else in the mean of all."""

    def program(replica: Replica) -> tuple[float, float]:
        weight, optimizer = one_weight(replica, overlap=overlap)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
        with replica.session(nn.ParameterList([weight]), optimizer):
            for step in range(3):
                optimizer.zero_grad()
                bad = replica.index == 1 and step == 1
                scaler.scale((weight * (float("inf") if bad else 1.0)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
        return weight.item(), scaler.get_scale()

    if overlap:
        assert in_ring(2, program) == [(-2.0, 2.0)] * 2
    else:
        assert in_ring(2, program) == [(-3.0, 4.0), (-3.0, 2.0)]


@pytest.mark.parametrize(
    ("passes", "before"), [((1,), 0), ((2, 1), 0), ((3, 3), 0), ((3, 3), 1), ((2, 2, 1), 0)]
)
def test_an_infinity_reaches_all_in_whichever_pass_it_is(passes: tuple[int, ...], before: int) -> None:
    """Accumulations of so many passes; in the last one, after `before` passes, worker 1 has an infinity.

    All skip, and all scales stay alike; then one more step is made.
    """

    def program(replica: Replica) -> tuple[list[str], float, float]:
        weight, optimizer = one_weight(replica)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
        seen = []

        def give_scaled(gradient: float, every: int) -> None:
            optimizer.zero_grad()
            scaler.scale((weight * gradient).sum()).backward()
            seen.append(scaler.step(optimizer, every=every).status)  # type: ignore[union-attr]
            scaler.update()

        with replica.session(nn.ParameterList([weight]), optimizer):
            for every in passes[:-1]:
                for _ in range(every):
                    give_scaled(1.0, every)
            for _ in range(before):
                give_scaled(1.0, passes[-1])
            give_scaled(math.inf if replica.index == 1 else 1.0, passes[-1])
            for _ in range(passes[-1]):
                give_scaled(1.0 + replica.index, passes[-1])
        return seen, weight.item(), scaler.get_scale()

    held = [["held"] * (every - 1) + ["applied"] for every in passes]
    seen = [*chain(*held[:-1]), *["held"] * before, "skipped", *held[-1]]
    assert in_ring(2, program) == [(seen, 1.0 - len(passes) - 1.5, 2.0)] * 2


def test_who_skips_steps_with_the_clipped_gradient() -> None:
    def program(replica: Replica) -> float:
        weight, optimizer = one_weight(replica)
        with replica.session(nn.ParameterList([weight]), optimizer):
            for step in range(2):
                if replica.index == 1 and step == 1:
                    optimizer.skip()
                    continue
                optimizer.zero_grad()
                give(weight, 4.0)
                nn.utils.clip_grad_norm_([weight], 1.0)
                optimizer.step()
        return weight.item()

    first, second = in_ring(2, program)
    assert first == second == pytest.approx(-2.0, abs=1e-5)


@pytest.mark.parametrize("every", [1, 2])
def test_what_a_worker_brought_last_of_its_buffers_counts_while_it_skips(every: int) -> None:
    class Counting(nn.Module):
        def __init__(self, weight: nn.Parameter) -> None:
            super().__init__()
            self.weight = weight
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, value: float) -> Tensor:
            self.get_buffer("seen").add_(value)
            return (self.weight * value).sum()

    def program(replica: Replica) -> tuple[list[float], float]:
        weight, optimizer = one_weight(replica)
        model, seen = Counting(weight), []
        with replica.session(model, optimizer, buffers="mean"):
            for turn in range(3):
                if turn == 1 and replica.index == 1:
                    optimizer.skip()
                else:
                    for _ in range(every):
                        optimizer.zero_grad()
                        model(10.0 if replica.index else 2.0).backward()
                        optimizer.step(every=every)
                if turn == 0:
                    late = nn.Parameter(torch.zeros(1))
                    optimizer.add_param_group({"params": [late]})
                seen.append(model.get_buffer("seen").item())
        return seen, weight.item()

    # 2 and 10, so 6; then 8 and the 10 of before, so 9; then 11 and 19.
    seen = [every * each for each in (6.0, 9.0, 15.0)]
    assert in_ring(2, program) == [(seen, -14.0)] * 2


def test_who_skips_leaves_out_what_nobody_used() -> None:
    """A gradient that is left of an earlier step is not applied, and is left as it is."""

    def program(replica: Replica) -> tuple[float, float, float]:
        used, idle = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        optimizer = replica.distribute(torch.optim.SGD([used, idle], lr=1.0))
        with replica.session(nn.ParameterList([used, idle]), optimizer):
            (used + idle).sum().backward()
            optimizer.step()
            if replica.index == 1:
                optimizer.skip()  # without zero_grad
            else:
                optimizer.zero_grad()
                used.sum().backward()
                optimizer.step()
            assert idle.grad is None if replica.index == 0 else idle.grad is not None
        return used.item(), idle.item(), 0.0

    assert in_ring(2, program) == [(-2.0, -1.0, 0.0)] * 2


def test_all_who_gave_may_leave_the_step_out() -> None:
    """Worker 2 skips, the others find the mean not to their liking: nobody steps."""

    def program(replica: Replica) -> float:
        weight, optimizer = one_weight(replica)
        with replica.session(nn.ParameterList([weight]), optimizer) as session:
            for step in range(3):
                if replica.index == 2 and step == 1:
                    optimizer.skip()
                    continue
                optimizer.zero_grad()
                give(weight, 1.0)
                if step == 1:
                    optimizer.skip()
                else:
                    optimizer.step()
            assert session.global_step == 2
        return weight.item()

    assert in_ring(3, program) == [-2.0] * 3


def test_several_backward_passes_to_a_step_that_another_skips() -> None:
    def program(replica: Replica) -> float:
        weight, optimizer = one_weight(replica)
        with replica.session(nn.ParameterList([weight]), optimizer):
            for _ in range(2):
                if replica.index == 1:
                    optimizer.skip()
                    continue
                optimizer.zero_grad()
                give(weight, 1.0)
                give(weight, 2.0)
                optimizer.step()
        return weight.item()

    assert in_ring(2, program) == [-6.0, -6.0]


def errors_of(workers: int, program: Callable[[Replica], object]) -> list[BaseException]:
    """What is raised in each worker."""
    raised: dict[int, BaseException] = {}

    def guarded(replica: Replica) -> None:
        try:
            program(replica)
        except BaseException as error:
            raised[replica.index] = error
            replica.fail(error)

    in_ring(workers, guarded)
    return [raised[index] for index in sorted(raised)]


def test_a_step_that_only_one_leaves_out_after_backward_is_an_error_on_all() -> None:
    def program(replica: Replica) -> None:
        weight, optimizer = one_weight(replica)
        with replica.session(nn.ParameterList([weight]), optimizer):
            for step in range(4):
                optimizer.zero_grad()
                give(weight, 1.0)
                if replica.index != 1 or step != 1:
                    optimizer.step()

    errors = errors_of(2, program)
    assert len(errors) == 2
    for error in errors:
        assert type(error) is ArgosyError
        assert "/job:worker/task:1 is in the middle of step 2 and /job:worker/task:0" in str(error)
        assert "step() or skip()" in str(error)


# --- accumulating -----------------------------------------------------------------------------------------
def accumulated(replica: Replica) -> list[float]:
    """Two passes a step, with gradients whose sums are not exact; the weight after each step."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
    seen = []
    with replica.session(nn.ParameterList([weight]), optimizer):
        for _ in range(3):
            for part in range(2):
                optimizer.zero_grad()
                give(weight, math.sin(1 + replica.index + 5 * part))
                optimizer.step(every=2)
            seen.append(weight.item())
    return seen


def test_the_first_pass_of_an_accumulation_is_as_every_other() -> None:
    first, second, third = in_ring(3, accumulated)
    assert first == second == third
    steps = [first[0], first[1] - first[0], first[2] - first[1]]
    # The passes of each worker are added before they are averaged, in the first step too: the same bits.
    sums = [math.sin(1 + index) + math.sin(6 + index) for index in range(3)]
    expected = -(sums[0] + sums[1] + sums[2]) / 3 / 2
    assert steps[0] == expected
    assert steps == pytest.approx([expected] * 3)


@pytest.mark.parametrize("skips", [0, 1, 2])
def test_an_accumulation_that_is_given_up_counts_nowhere(skips: int) -> None:
    def program(replica: Replica) -> list[float]:
        weight, optimizer = one_weight(replica)
        seen = []
        with replica.session(nn.ParameterList([weight]), optimizer):
            for step in range(3):
                if step == skips and replica.index == 1:
                    with optimizer.no_sync():
                        give(weight, 100.0)
                    optimizer.skip()
                else:
                    for _ in range(2):
                        optimizer.zero_grad()
                        give(weight, 1.0)
                        optimizer.step(every=2)
                optimizer.zero_grad()
                seen.append(weight.item())
        return seen

    assert in_ring(2, program) == [[-1.0, -2.0, -3.0]] * 2


# --- the first step ---------------------------------------------------------------------------------------
def test_without_a_session_the_first_gradients_are_averaged_when_backward_returns() -> None:
    def program(replica: Replica) -> list[float]:
        weight, optimizer = one_weight(replica)
        seen = []
        for _ in range(3):
            optimizer.zero_grad()
            give(weight, 1.0 + 4.0 * replica.index)
            assert weight.grad is not None
            seen.append(weight.grad.item())
            nn.utils.clip_grad_norm_([weight], 1.0)
            optimizer.step()
        return [*seen, weight.item()]

    first, second = in_ring(2, program)
    assert first == second
    assert first == pytest.approx([3.0, 3.0, 3.0, -3.0], abs=1e-5)


def test_a_backward_pass_before_the_session_does_no_harm() -> None:
    def program(replica: Replica) -> float:
        weight, optimizer = one_weight(replica)
        give(weight, 7.0)
        with replica.session(nn.ParameterList([weight]), optimizer):
            optimizer.zero_grad()
            give(weight, 1.0 + replica.index)
            optimizer.step()
        return weight.item()

    assert in_ring(2, program) == [-1.5, -1.5]


def test_a_first_gradient_of_other_values_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def program(replica: Replica) -> None:
        weight = nn.Parameter(torch.full((2,), float(replica.index)))
        optimizer = replica.distribute(torch.optim.SGD([weight], lr=1.0))
        for _ in range(2):
            optimizer.zero_grad()
            (weight**2).sum().backward()
            optimizer.step()

    in_ring(2, program)
    said = [line for line in capsys.readouterr().err.splitlines() if "without a session" in line]
    assert len(said) == 1
    assert "/job:worker/task:1" in said[0]


@pytest.mark.parametrize("key", ["momentum_buffer", "exp_avg"])
def test_the_optimizers_state_begins_as_the_chiefs(key: str) -> None:
    """Worker 0 has trained before, worker 1 has other memories: both go on as worker 0."""

    def program(replica: Replica) -> tuple[list[float], float]:
        weight = nn.Parameter(torch.zeros(2))
        inner: torch.optim.Optimizer = (
            torch.optim.SGD([weight], lr=1.0, momentum=0.5)
            if key == "momentum_buffer"
            else torch.optim.Adam([weight], lr=1.0)
        )
        for _ in range(1 + 2 * replica.index):
            weight.grad = torch.full((2,), 1.0 + replica.index)
            inner.step()
        optimizer = replica.distribute(inner)
        with replica.session(nn.ParameterList([weight]), optimizer):
            for _ in range(2):
                optimizer.zero_grad()
                give(weight, 1.0)
                optimizer.step()
        return weight.tolist(), float(inner.state[weight].get("step", 0))

    weight = nn.Parameter(torch.zeros(2))
    plain: torch.optim.Optimizer = (
        torch.optim.SGD([weight], lr=1.0, momentum=0.5)
        if key == "momentum_buffer"
        else torch.optim.Adam([weight], lr=1.0)
    )
    for _ in range(3):
        weight.grad = torch.ones(2)
        plain.step()
    expected = weight.tolist(), float(plain.state[weight].get("step", 0))
    assert in_ring(2, program) == [expected] * 2


def test_a_state_that_only_another_worker_has_is_forgotten() -> None:
    def program(replica: Replica) -> float:
        weight = nn.Parameter(torch.zeros(1))
        inner = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
        if replica.index == 1:
            inner.state[weight]["momentum_buffer"] = torch.full((1,), 8.0)
        optimizer = replica.distribute(inner)
        with replica.session(nn.ParameterList([weight]), optimizer):
            give(weight, 1.0)
            optimizer.step()
        return weight.item()

    assert in_ring(2, program) == [-1.0, -1.0]


# --- groups that come later -------------------------------------------------------------------------------
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("skips", [0, 1])
def test_a_skip_in_the_step_after_a_new_group(skips: int, inside: bool) -> None:
    def program(replica: Replica) -> tuple[float, float]:
        weight, optimizer = one_weight(replica)
        late = nn.Parameter(torch.full((1,), 10.0 + replica.index))
        with replica.session(nn.ParameterList([weight]), optimizer):
            give(weight, 1.0)
            optimizer.step()
            target = optimizer._inner if inside else optimizer
            target.add_param_group({"params": [late]})
            if not inside:
                assert late.item() == 10.0  # the chief's, before the first forward
            for turn in range(2):
                optimizer.zero_grad()
                if turn == 0 and replica.index == skips:
                    optimizer.skip()
                else:
                    (weight + late).sum().backward()
                    optimizer.step()
        return weight.item(), late.item()

    assert in_ring(2, program) == [(-3.0, 8.0)] * 2


@pytest.mark.parametrize("before", [True, False])
def test_a_new_group_after_the_backward_pass_beside_a_skip_is_an_error_on_all(before: bool) -> None:
    """Whether the one who skips adds its group before that or afterwards: nobody waits for the other."""

    def program(replica: Replica) -> None:
        weight, optimizer = one_weight(replica)
        late = nn.Parameter(torch.zeros(1))
        with replica.session(nn.ParameterList([weight]), optimizer):
            if replica.index == 0:
                give(weight, 1.0)
                optimizer.add_param_group({"params": [late]})
                optimizer.step()
                return
            if before:
                optimizer.add_param_group({"params": [late]})
            optimizer.skip()
            optimizer.add_param_group({"params": [late]})

    who, other = (1, 0) if before else (0, 1)
    for error in errors_of(2, program):
        assert str(error) == (
            f"/job:worker/task:{who} has added a group of parameters, and /job:worker/task:{other} has not, "
            "in step 1: call add_param_group() before the backward pass, in the same step on every worker"
        )


def test_a_new_group_after_the_backward_pass_of_all() -> None:
    def program(replica: Replica) -> tuple[float, float]:
        weight, optimizer = one_weight(replica)
        late = nn.Parameter(torch.zeros(1))
        with replica.session(nn.ParameterList([weight]), optimizer):
            give(weight, 1.0 + replica.index)
            optimizer.add_param_group({"params": [late]})
            optimizer.step()
            optimizer.zero_grad()
            (weight + late).sum().backward()
            optimizer.step()
        return weight.item(), late.item()

    assert in_ring(2, program) == [(-2.5, -1.0)] * 2


# --- what must be alike -----------------------------------------------------------------------------------
@pytest.mark.parametrize("workers", [2, 3])
def test_hyperparameters_that_differ_end_the_training_on_all(workers: int) -> None:
    """As a scheduler on the loss of each worker would have it."""

    def program(replica: Replica) -> None:
        weight, optimizer = one_weight(replica)
        with replica.session(nn.ParameterList([weight]), optimizer):
            for step in range(6):
                optimizer.zero_grad()
                give(weight, 1.0)
                optimizer.step()
                if step == 2 and replica.index == 1:
                    optimizer.param_groups[0]["lr"] = 0.1

    errors = errors_of(workers, program)
    assert len(errors) == workers
    for error in errors:
        assert isinstance(error, ConfigError)
        assert str(error) == (
            "lr of group 0 of /job:worker/task:1 in a step of the ring: expected 1.0, as on "
            "/job:worker/task:0, got 0.1; set the same on every worker"
        )


def test_loss_scales_that_differ_end_the_training_on_all() -> None:
    def program(replica: Replica) -> None:
        weight, optimizer = one_weight(replica)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0 * (1 + replica.index))
        with replica.session(nn.ParameterList([weight]), optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                scaler.scale(weight.sum()).backward()
                scaler.step(optimizer)
                scaler.update()

    errors = errors_of(2, program)
    assert [type(error) for error in errors] == [ConfigError] * 2
    assert all("the same loss scale" in str(error) for error in errors)


def test_a_scheduler_that_all_have_is_no_difference() -> None:
    def program(replica: Replica) -> float:
        weight, optimizer = one_weight(replica)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        with replica.session(nn.ParameterList([weight]), optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                give(weight, 1.0)
                optimizer.step()
                scheduler.step()
        return weight.item()

    assert in_ring(2, program) == [-1.75, -1.75]


# --- sparse gradients -------------------------------------------------------------------------------------
SPARSE: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "SparseAdam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def words(step: int, worker: int) -> tuple[Tensor, Tensor]:
    """Six words of which some repeat, and their targets; the gradient of word 1 is zero."""
    generator = torch.Generator().manual_seed(100 * step + worker)
    drawn = torch.randint(2, 30, (6,), generator=generator)
    drawn[0], drawn[1] = 1, drawn[2]
    target = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return drawn, target


def word_loss(table: nn.Embedding, drawn: Tensor, target: Tensor) -> Tensor:
    found = table(drawn) * (drawn != 1).double()[:, None]
    return F.mse_loss(found, target * (drawn != 1).double()[:, None])


def make_table() -> nn.Embedding:
    torch.manual_seed(3)
    return nn.Embedding(30, 3, sparse=True).double()


def check_sparse(optimizer: str, workers: int, clip_norm: float | None = None) -> None:
    kinds: list[Any] = []
    tables = [make_table() for _ in range(workers)]

    def program(replica: Replica) -> Tensor:
        table = tables[replica.index]
        distributed = replica.distribute(SPARSE[optimizer](list(table.parameters())), clip_norm=clip_norm)
        with replica.session(table, distributed):
            for step in range(6):
                distributed.zero_grad()
                if replica.index == 1 and step == 3:
                    distributed.skip()
                    continue
                word_loss(table, *words(step, replica.index)).backward()
                assert table.weight.grad is not None
                kinds.append(table.weight.grad.layout)
                distributed.step()
        return table.weight.detach()

    results = in_ring(workers, program)
    table = make_table()
    plain = SPARSE[optimizer](list(table.parameters()))
    for step in range(6):
        plain.zero_grad()
        joined = [words(step, worker) for worker in range(workers) if (worker, step) != (1, 3)]
        drawn, target = (torch.cat(each) for each in zip(*joined, strict=True))
        word_loss(table, drawn, target).backward()
        assert table.weight.grad is not None
        if clip_norm is not None:
            norm = table.weight.grad.coalesce().values().norm()
            table.weight.grad.mul_(torch.clamp(clip_norm / (norm + 1e-6), max=1.0))
        plain.step()
    assert set(kinds) == {torch.sparse_coo}
    for result in results:
        assert torch.equal(result, results[0])
        assert torch.allclose(result, table.weight, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own, of its Adagrad
@pytest.mark.parametrize("optimizer", SPARSE)
@pytest.mark.parametrize("workers", [2, 3])
def test_sparse_gradients_stay_sparse(optimizer: str, workers: int) -> None:
    check_sparse(optimizer, workers)


def test_sparse_gradients_in_several_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaging, "BUCKET_BYTES", 128)
    check_sparse("SparseAdam", 2)


def test_sparse_gradients_are_clipped() -> None:
    check_sparse("SGD", 2, clip_norm=0.1)


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
    [
        test_who_skips_steps_with_the_clipped_gradient,
        test_who_skips_leaves_out_what_nobody_used,
        test_several_backward_passes_to_a_step_that_another_skips,
        lambda: test_sparse_gradients_stay_sparse("SparseAdam", 2),
        lambda: test_who_skips_steps_as_those_who_accumulate(True, True),
        lambda: test_what_a_worker_brought_last_of_its_buffers_counts_while_it_skips(1),
        lambda: test_what_a_worker_brought_last_of_its_buffers_counts_while_it_skips(2),
        lambda: test_hyperparameters_that_differ_end_the_training_on_all(3),
    ],
)
def test_the_way_of_devices(what: Callable[[], None]) -> None:
    what()
