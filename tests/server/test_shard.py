"""Shards against torch.optim, parameter by parameter: all optimizers and their variants, skips, groups."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from twins import Optimizer, Twins

from argosy.errors import ConfigError, WireError
from argosy.protocol import layout as layouts
from argosy.protocol.joining import OptimizerSpec
from argosy.protocol.layout import Layout, ParameterSpec, Share, extend
from argosy.server.flat_optimizer import FlatOptimizer
from argosy.server.shard import Shard
from argosy.store.optimizers import describe
from argosy.store.placement import RoundRobin, Split

SHAPES = [(4, 3), (3,), (), (2, 5), (0, 2), (7,)]


def kind(name: str, **options: Any) -> Any:
    def make(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = getattr(torch.optim, name)(groups, foreach=False, **options)
        return made

    return pytest.param(make, id=" ".join([name, *options]))


OPTIMIZERS = [
    kind("SGD", lr=0.1),
    kind("SGD", lr=0.1, momentum=0.9),
    kind("SGD", lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    kind("SGD", lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    kind("Adam", lr=0.01),
    kind("Adam", lr=0.01, amsgrad=True, weight_decay=0.1),
    kind("Adam", lr=0.01, maximize=True, betas=(0.8, 0.9), eps=1e-6),
    kind("AdamW", lr=0.01),
    kind("AdamW", lr=0.01, amsgrad=True, weight_decay=0.3),
    kind("Adagrad", lr=0.1),
    kind("Adagrad", lr=0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5, maximize=True),
    kind("RMSprop", lr=0.01),
    kind("RMSprop", lr=0.01, momentum=0.9, centered=True, weight_decay=0.1),
    kind("RMSprop", lr=0.01, alpha=0.9, maximize=True),
]
ADAM = OPTIMIZERS[4].values[0]
MOMENTUM = OPTIMIZERS[1].values[0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_shard_does_what_torch_does(optimizer: Optimizer) -> None:
    twins = Twins(SHAPES, optimizer)
    for _ in range(6):
        twins.step([twins.gradient()])
    twins.check()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_without_a_gradient_are_skipped_as_torch_does(optimizer: Optimizer) -> None:
    """Also before their first one, several at a time, and all at once."""
    twins = Twins(SHAPES, optimizer, servers=2, placement=Split(over=16))
    for absent in [(1, 5), (1,), (), (0, 1, 2), (3,), (), range(6), (0, 5), ()]:
        twins.step([twins.gradient(absent)])
        twins.check()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_parameter_that_one_worker_lacks_counts_as_zero_there(optimizer: Optimizer) -> None:
    twins = Twins(SHAPES, optimizer)
    for absents in [((1,), (), (1, 2)), ((1,), (1,), (1,)), ((), (0,), (5, 3)), ((), (), ())]:
        twins.step([twins.gradient(absent) for absent in absents])
    twins.check()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_hyperparameters_may_change(optimizer: Optimizer) -> None:
    twins = Twins(SHAPES, optimizer, groups=[0, 1, 0, 1, 1, 0])
    for step in range(6):
        twins.step([twins.gradient()])
        twins.reference.param_groups[step % 2]["lr"] *= 0.5
        twins.reference.param_groups[1]["weight_decay"] = 0.01 * step
    twins.check()


def test_momentum_may_be_switched_on_later() -> None:
    twins = Twins(SHAPES, MOMENTUM)
    for momentum in (0.0, 0.9, 0.5, 0.0, 0.9):
        twins.reference.param_groups[0]["momentum"] = momentum
        twins.step([twins.gradient([1])])
        twins.step([twins.gradient()])
        twins.check()


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("placement", [RoundRobin(), Split(over=0)])
def test_the_number_of_servers_changes_nothing(servers: int, placement: RoundRobin | Split) -> None:
    alone, spread = Twins(SHAPES, ADAM), Twins(SHAPES, ADAM, servers=servers, placement=placement)
    for absent in [(), (1,), ()]:
        for twins in (alone, spread):
            twins.step([twins.gradient(absent), twins.gradient()])
    for mine, theirs in zip(alone.values(), spread.values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_parameters_larger_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "MAX_FRAME_BYTES", 24)
    twins = Twins(SHAPES, MOMENTUM, servers=2)
    for absent in [(0,), (), (5,), ()]:
        twins.step([twins.gradient(absent), twins.gradient()])
    twins.check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_have_float32_masters(dtype: torch.dtype) -> None:
    twins = Twins(SHAPES, ADAM, dtype=dtype)
    for _ in range(30):
        twins.step([twins.gradient(), twins.gradient([1])])
    assert all(value.dtype == dtype for value in twins.values())
    for mine, theirs in zip(twins.values(), twins.parameters, strict=True):
        torch.testing.assert_close(mine, theirs.to(dtype))
        assert theirs.dtype == torch.float32


def test_small_updates_of_a_half_precision_model_are_not_lost() -> None:
    twins = Twins([(8,)], lambda groups: torch.optim.SGD(groups, lr=1e-4), dtype=torch.bfloat16)
    before = twins.values()[0].clone()
    ones = [torch.ones(8, dtype=torch.bfloat16)]
    for _ in range(1000):
        twins.step([ones])
    torch.testing.assert_close(twins.values()[0].float(), before.float() - 0.1, rtol=0.01, atol=0.01)


def test_float64_models_keep_float64() -> None:
    twins = Twins(SHAPES, ADAM, dtype=torch.float64, master=torch.float64)
    for _ in range(3):
        twins.step([twins.gradient(), twins.gradient()])
    for mine, theirs in zip(twins.values(), twins.parameters, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


# --- means ------------------------------------------------------------------------------------------------
def test_a_mean_is_weighted() -> None:
    twins = Twins(SHAPES, ADAM)
    for _ in range(3):
        twins.step([twins.gradient(), twins.gradient(), twins.gradient([0])], weights=[32.0, 8.0, 1.0])
    twins.check()


def test_the_order_of_the_parts_decides_the_bits_and_nothing_else_does() -> None:
    """A second shard, given the same parts in the same order, has the same bits; whatever came before."""
    first, second = (Twins([(1000,)], ADAM) for _ in range(2))
    for _ in range(3):
        gradients = [first.gradient() for _ in range(4)]
        first.step(gradients)
        second.step(gradients)
    assert torch.equal(first.values()[0], second.values()[0])


def test_what_is_summed_early_has_the_same_bits() -> None:
    gradients = [[torch.randn(1000)] for _ in range(4)]
    results = []
    for early in range(5):
        twins = Twins([(1000,)], MOMENTUM)
        shard = twins.shards[0]
        parts = [twins.accepted(shard, 0, gradient) for gradient in gradients]
        for part in parts[:early]:
            assert shard.is_whole(part)
            shard.add_early(part)
        shard.reduce([(part, 1.0) for part in parts])
        shard.update(None)
        results.append(twins.values()[0])
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("chosen", [[1], [1, 2], [0], [2, 0], [3, 0, 1, 2]], ids=str)
def test_what_was_summed_early_and_is_not_first_after_all_does_not_count(chosen: list[int]) -> None:
    """A worker died between two servers, or was replaced: the coordinator's order is what counts."""
    early, plain = Twins([(1000,)], MOMENTUM), Twins([(1000,)], MOMENTUM)
    gradients = [[torch.randn(1000)] for _ in range(4)]
    for twins in (early, plain):
        shard = twins.shards[0]
        parts = [twins.accepted(shard, 0, gradient) for gradient in gradients]
        for part in parts[:2] if twins is early else ():
            shard.add_early(part)
        for order in (chosen, [0, 1]):
            shard.reduce([(parts[worker], 1.0) for worker in order])
            shard.update(None)
    assert torch.equal(early.values()[0], plain.values()[0])


def test_gradients_are_only_read() -> None:
    for optimizer in (param.values[0] for param in OPTIMIZERS):
        twins = Twins(SHAPES, optimizer)
        shard = twins.shards[0]
        gradients = [twins.accepted(shard, 0, twins.gradient()) for _ in range(2)]
        before = [[block.clone() for block in gradient.blocks] for gradient in gradients]
        for parts in ([gradients[0]], gradients, [gradients[0]]):
            shard.reduce([(gradient, 1.0) for gradient in parts])
            shard.update(None, factor=0.5)
        for gradient, copies in zip(gradients, before, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(gradient.blocks, copies, strict=True))


def test_values_are_a_copy_that_no_update_touches() -> None:
    twins = Twins(SHAPES, ADAM)
    values = twins.shards[0].values()
    assert twins.shards[0].values() is values
    copies = [value.clone() for value in values]
    twins.step([twins.gradient()])
    assert all(torch.equal(a, b) for a, b in zip(values, copies, strict=True))
    assert not torch.equal(twins.shards[0].values()[0], values[0])


def test_the_squares_of_the_shares_are_the_square_of_the_norm() -> None:
    twins = Twins(SHAPES, ADAM, servers=3, placement=Split(over=0))
    gradients = [twins.gradient([0]), twins.gradient([0, 1])]
    for server, shard in enumerate(twins.shards):
        shard.reduce([(twins.accepted(shard, server, gradient), 1.0) for gradient in gradients])
    squares = sum(shard.square() for shard in twins.shards)
    numbers = range(1, len(SHAPES))
    means = [sum(value for g in gradients if (value := g[number]) is not None) / 2 for number in numbers]
    norm = torch.cat([torch.as_tensor(mean).reshape(-1) for mean in means]).double().norm()
    assert squares == pytest.approx(float(norm) ** 2, rel=1e-6)


def test_a_factor_scales_the_step() -> None:
    scaled, whole = (Twins(SHAPES, lambda groups: torch.optim.SGD(groups, lr=0.1)) for _ in range(2))
    gradient = scaled.gradient()
    shard = scaled.shards[0]
    shard.reduce([(scaled.accepted(shard, 0, gradient), 1.0)])
    shard.update(None, factor=0.25)
    whole.step([[value * 0.25 if value is not None else None for value in gradient]])
    for mine, theirs in zip(scaled.values(), whole.values(), strict=True):
        torch.testing.assert_close(mine, theirs)


# --- later groups -----------------------------------------------------------------------------------------
def test_blocks_that_come_later_train_from_then_on() -> None:
    """A worker that does not know them yet brings no gradient for them; one that does, does."""
    twins = Twins([(4,)], ADAM)
    shard = twins.shards[0]
    twins.step([twins.gradient()])
    late = ParameterSpec("late", (3,), "float32", group=1)
    wider = extend(twins.layout, [late], [[Share(0, 0, 3)]])
    fresh = torch.zeros(3, requires_grad=True)
    twins.reference.add_param_group({"params": [fresh], "lr": 0.5})
    shard.extend(wider, describe(twins.reference), [torch.zeros(3)])
    assert [value.numel() for value in shard.values()] == [4, 3]
    old, new = torch.ones(4), torch.ones(3)
    shard.reduce([(shard.accept([old], ()), 1.0)])
    shard.update(None)
    assert shard.values()[1].tolist() == [0, 0, 0]
    shard.reduce([(shard.accept([old], ()), 1.0), (shard.accept([old, new], ()), 1.0)])
    shard.update(None)
    torch.testing.assert_close(shard.values()[1], torch.full((3,), -0.5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("whole", [True, False])
def test_blocks_that_come_while_the_norm_is_awaited_have_no_part_in_that_step(whole: bool) -> None:
    twins = Twins([(4,), (2,)], ADAM)
    shard = twins.shards[0]
    gradient = shard.accept([torch.ones(6)], () if whole else (1,))
    shard.reduce([(gradient, 1.0)])
    assert shard.square() == pytest.approx(6.0 if whole else 4.0)
    late = ParameterSpec("late", (3,), "float32", group=1)
    twins.reference.add_param_group({"params": [torch.zeros(3, requires_grad=True)], "lr": 0.5})
    shard.extend(extend(twins.layout, [late], [[Share(0, 0, 3)]]), describe(twins.reference), [torch.ones(3)])
    before = shard.values()[0]
    shard.update(None, factor=0.5)
    after, new = shard.values()
    assert new.tolist() == [1, 1, 1]
    assert (after != before).tolist() == [True] * 4 + [whole] * 2


# --- what is refused --------------------------------------------------------------------------------------
def test_a_gradient_of_another_size_is_refused() -> None:
    shard = Twins([(4,)], ADAM).shards[0]
    with pytest.raises(WireError, match="block 0: expected 4 floats, got 5"):
        shard.accept([torch.zeros(5)], ())
    with pytest.raises(WireError, match=r"block 0: expected 4 floats, got 4 of torch\.int64"):
        shard.accept([torch.zeros(4, dtype=torch.int64)], ())
    with pytest.raises(WireError, match="expected at most 1 blocks, got 2"):
        shard.accept([torch.zeros(4), torch.zeros(4)], ())
    assert shard.accept([torch.zeros(2, 2)], (0,)).absent == frozenset({0})


def test_values_of_another_size_are_refused() -> None:
    layout = extend(Layout(), [ParameterSpec("p", (4,), "float32")], [[Share(0, 0, 4)]])
    spec = OptimizerSpec("SGD", ({"lr": 0.1},))
    with pytest.raises(WireError, match=r"values: expected blocks of \[4\], got \[3\]"):
        Shard(0).extend(layout, spec, [torch.zeros(3)])
    with pytest.raises(WireError, match=r"values: expected blocks of \[4\], got \[\]"):
        Shard(0).extend(layout, spec, [])


FULL = ((0, 4, 1.0),)


@pytest.mark.parametrize(
    ("slots", "steps", "message"),
    [
        ({"exp_avg": [torch.zeros(5)]}, [FULL], "expected 4 of exp_avg, exp_avg_sq, got 5 of exp_avg"),
        ({"sum": [torch.zeros(4)]}, [FULL], "expected 4 of exp_avg, exp_avg_sq, got 4 of sum"),
        ({"exp_avg": []}, [FULL], "expected it for 1 blocks"),
        ({}, [FULL, FULL], "expected it for 1 blocks, got 2"),
        ({}, [((0, 3, 1.0),)], "expected counts for 4 elements"),
        ({}, [((0, 1, 1.0), (2, 4, 1.0))], "expected counts for 4 elements"),
        ({}, [((1, 4, 1.0),)], "expected counts for 4 elements"),
        ({}, [()], "expected counts for 4 elements"),
    ],
)
def test_an_optimizers_state_that_does_not_fit_is_refused(slots: Any, steps: Any, message: str) -> None:
    shard = Twins([(4,)], ADAM).shards[0]
    with pytest.raises(WireError, match=message):
        shard.begin_from(0, slots, steps)


def parameter() -> list[torch.Tensor]:
    return [torch.zeros(2, requires_grad=True)]


class Mine(torch.optim.SGD):
    """Not torch's own."""


@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.LBFGS(parameter()), torch.optim.Adamax(parameter()), Mine(parameter(), lr=0.1)],
    ids=["LBFGS", "Adamax", "a subclass"],
)
def test_an_optimizer_that_is_not_supported_is_refused_by_name(optimizer: torch.optim.Optimizer) -> None:
    with pytest.raises(ConfigError) as caught:
        describe(optimizer)
    assert caught.value.field == "optimizer"
    assert "torch.optim.Adam" in caught.value.expected
    assert type(optimizer).__name__ in str(caught.value.got)


def test_an_optimizer_is_described_by_plain_data() -> None:
    spec = describe(torch.optim.Adam(parameter(), lr=torch.tensor(0.5), betas=(0.5, 0.25), fused=True))
    assert spec.name == "Adam"
    (group,) = spec.groups
    assert group["lr"] == 0.5
    assert group["betas"] == (0.5, 0.25)
    assert not {"params", "fused", "foreach", "capturable", "differentiable"} & group.keys()


def test_an_unknown_optimizer_is_refused_by_the_server_too() -> None:
    with pytest.raises(ConfigError, match=r"optimizer: expected one of .*SGD.*, got 'LBFGS'"):
        FlatOptimizer("LBFGS", {}, [torch.zeros(2)])


def test_an_optimizer_without_its_hyperparameters_is_refused() -> None:
    with pytest.raises(ConfigError, match="Adam"):
        FlatOptimizer("Adam", {"lr": 0.1}, [torch.zeros(2)])


def test_the_order_of_arrival_does_not_matter_once_the_parts_are_in_order() -> None:
    gradients = [torch.tensor([x]) for x in (1e8, 1.0, -1e8, 3.0)]
    results = set()
    for arrival in itertools.permutations(range(4)):
        twins = Twins([(1,)], MOMENTUM)
        shard = twins.shards[0]
        held = {worker: shard.accept([gradients[worker]], ()) for worker in arrival}
        shard.reduce([(held[worker], 1.0) for worker in sorted(held)])
        shard.update(None)
        results.add(float(twins.values()[0]))
    assert len(results) == 1


def test_a_weighted_mean_of_half_precision_is_not_rounded_before_the_update() -> None:
    layout = extend(Layout(), [ParameterSpec("w", (2,), "bfloat16", 0)], [[Share(0, 0, 2)]])
    spec = describe(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0))
    for parts in ((1.0, 2.0), (2.0, 1.0, 3.0)):
        shard = Shard(0)
        shard.extend(layout, spec, [torch.zeros(2, dtype=torch.bfloat16)])
        gradients = [torch.tensor([1.0, 3.0 + number]).bfloat16() for number in range(len(parts))]
        shard.reduce([(shard.accept([g], ()), w) for g, w in zip(gradients, parts, strict=True)])
        shard.update(None)
        ((state,),) = [[block.tensors["param"] for block in shard.blocks()]]
        expected = sum(g.double() * w for g, w in zip(gradients, parts, strict=True)) / sum(parts)
        torch.testing.assert_close(state.double(), -expected, rtol=1e-6, atol=0)


def test_a_mean_of_two_keeps_half_of_the_smallest_float16() -> None:
    layout = extend(Layout(), [ParameterSpec("w", (2,), "float32", 0)], [[Share(0, 0, 2)]])
    shard = Shard(0)
    shard.extend(
        layout, describe(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)), [torch.zeros(2)]
    )
    smallest = torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps
    gradients = [torch.tensor([smallest, 1.0]).half(), torch.zeros(2).half()]
    shard.reduce([(shard.accept([gradient], ()), 1.0) for gradient in gradients])
    shard.update(None)
    (state,) = [block.tensors["param"] for block in shard.blocks()]
    assert state.tolist() == [-smallest / 2, -0.5]
