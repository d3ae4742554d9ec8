"""Captured steps cut into segments: what is in each, what it waits for, and what happens after an error."""

from __future__ import annotations

import random

import pytest
import torch
from clusters import cluster_here

import argosy
from argosy.remote.operations.instructions import EXPECT, SEND, TENSOR, Result, Template
from argosy.remote.operations.kernel import Kernel
from argosy.remote.plan.dependencies import Dependencies, PreviousStep
from argosy.remote.plan.segments import cut_segments

FIRST, SECOND = "/job:worker/task:0", "/job:worker/task:1"


def operation(number: int, name: str, inputs: int, writes: bool = False, view: bool = False) -> Kernel:
    results = () if writes else (Result((2,), (1,), "float32", 0 if view else -1),)
    picks = () if writes else (0,)
    args = [[TENSOR] for _ in range(inputs)]
    template = Template(number, name, args, {}, inputs, 0, "cpu:0", picks, results)
    return Kernel(template, torch.device("cpu"))


TEMPLATES = {
    0: operation(0, "aten::relu", 1),
    1: operation(1, "aten::add_.Tensor", 2, writes=True),
    2: operation(2, "aten::t", 1, view=True),
}


def shape_of(records: list[object], returned: tuple[int, ...] = ()) -> list[list[str]]:
    step = Dependencies(records, TEMPLATES, (), {})
    segments = cut_segments(step, [step.register_of[each] for each in returned], ())
    return [
        ["send" if item.kernel is None else item.kernel.name.partition("::")[2] for item in each.items]
        for each in segments
    ]


def test_what_needs_the_same_values_is_one_segment_and_what_is_sent_leaves_when_it_is_made() -> None:
    parameter, other, mine, here, there = 1, 2, 10, 11, 12
    records: list[object] = [EXPECT, mine, SECOND, EXPECT, other, SECOND]
    records += [0, -1, here, mine]  # needs one received
    records += [0, -1, there, parameter]  # needs none
    records += [1, -1, 0, there, other]  # needs the other
    records += [SEND, here, SECOND, 99, -1]
    assert shape_of(records) == [["relu"], ["relu", "send"], ["add_.Tensor"]]


def test_a_writer_comes_after_the_readers_before_it() -> None:
    parameter, gradient, seen = 1, 10, 11
    records: list[object] = [
        EXPECT,
        gradient,
        SECOND,
        SEND,
        parameter,
        SECOND,
        99,
        -1,
        0,
        -1,
        seen,
        parameter,
    ]
    records += [1, -1, 0, parameter, gradient]
    step = Dependencies(records, TEMPLATES, (), {})
    first, second = cut_segments(step, (), ())
    assert [item.kernel is None for item in first.items] == [True, False]
    assert second.after == [0]


def test_a_returned_value_ends_a_segment() -> None:
    records: list[object] = [0, -1, 10, 1, 0, -1, 11, 10]
    assert shape_of(records) == [["relu", "relu"]]
    assert shape_of(records, returned=(10,)) == [["relu"], ["relu"]]


def test_long_branches_get_segments_of_their_own() -> None:
    records: list[object] = [0, -1, 10, 1, 0, -1, 11, 2, 0, -1, 12, 10, 0, -1, 13, 11]
    step = Dependencies(records, TEMPLATES, (), {})
    assert len(cut_segments(step, (), ())) == 1
    assert len(cut_segments(step, (), (), [0.1, 0.1, 0.1, 0.1])) == 1
    branches = cut_segments(step, (), (), [0.1, 0.1, 0.1, 0.1], side_by_side=True)
    assert [[item.index for item in each.items] for each in branches] == [[0, 2], [1, 3]]


def test_a_view_is_in_the_branch_of_who_uses_it() -> None:
    """It waits with its user: a segment must not come before one that it needs."""
    received, view, other, used, long, after = 10, 11, 12, 13, 14, 15
    records: list[object] = [EXPECT, received, SECOND, 2, -1, view, 1, 0, -1, other, 1, 0, -1, long, received]
    records += [0, -1, used, received, 1, -1, 0, used, view, 0, -1, after, other]
    step = Dependencies(records, TEMPLATES, (), {})
    for costs in ([0.1] * 6, [0.0, 0.1, 0.1, 0.0, 0.0, 0.1]):
        segments = cut_segments(step, (), (), costs, side_by_side=True)
        where = {item.index: number for number, each in enumerate(segments) for item in each.items}
        assert where[0] == where[4]
        for number, each in enumerate(segments):
            assert all(before < number for before in each.after)


@pytest.mark.parametrize("seed", range(100))
def test_segments_come_after_what_they_need_whatever_the_program(seed: int) -> None:
    chance = random.Random(seed)
    records: list[object] = []
    values, made = [1, 2, 3], 10  # three that were there before
    for _ in range(chance.randint(3, 40)):
        kind = chance.choice(["expect", "send", "relu", "relu", "add", "view", "view"])
        if kind == "expect":
            records += [EXPECT, made, SECOND]
        elif kind == "send":
            records += [SEND, chance.choice(values), SECOND, 1000 + made, -1]
            continue
        elif kind == "add":
            records += [1, -1, 0, chance.choice(values), chance.choice(values)]
            continue
        else:
            records += [0 if kind == "relu" else 2, -1, made, chance.choice(values)]
        values.append(made)
        made += 1
    first = Dependencies(records, TEMPLATES, (), {})
    sizes = {number: chance.choice([100, 2**20]) for number in first.externals}
    returned = [number for number in values[3:] if chance.random() < 0.1]
    wanted = [first.register_of[number] for number in returned]
    for step in (first, Dependencies(records, TEMPLATES, (), {}, first.as_previous_step(sizes, wanted))):
        costs = [chance.choice([0.0, 1e-4, 5e-3]) for _ in step.items]
        for side_by_side in (False, True):
            segments = cut_segments(step, wanted, (), costs, side_by_side)
            order = [item for segment in segments for item in segment.items]
            place = {item.index: number for number, item in enumerate(order)}
            assert len(order) == len(place) == len(step.items)
            assert all(place[before] < place[item.index] for item in order for before in item.after)
            for number, segment in enumerate(segments):
                assert all(before < number for before in segment.after)


def test_what_is_updated_early_is_read_early_in_the_next_step() -> None:
    large, small, tiny = 1, 2, 3
    gradients = {large: 10, small: 11, tiny: 12}
    records: list[object] = [word for each in gradients.values() for word in (EXPECT, each, SECOND)]
    for number, parameter in enumerate(gradients):
        records += [SEND, parameter, SECOND, 90 + number, -1]
    for parameter, gradient in gradients.items():
        records += [1, -1, 0, parameter, gradient]
    whole = Dependencies(records, TEMPLATES, (), {})
    assert [len(each.items) for each in cut_segments(whole, (), ())] == [3, 1, 1, 1]
    previous = whole.as_previous_step({large: 2**20, small: 100, tiny: 100}, ())
    assert previous.unfinished[small] == previous.unfinished[tiny] != previous.unfinished[large]
    segments = cut_segments(Dependencies(records, TEMPLATES, (), {}, previous), (), ())
    assert [[item.index for item in each.items] for each in segments] == [[0], [1, 2], [3], [4], [5]]
    assert [each.after for each in segments] == [[], [], [0], [1], [1]]


def test_what_comes_is_given_back_after_its_last_use_in_whichever_segment_that_is() -> None:
    received, made, later = 10, 11, 12
    records: list[object] = [EXPECT, received, SECOND, 0, -1, made, received, EXPECT, later, SECOND]
    records += [1, -1, 0, later, made, 1, -1, 0, later, received]  # the second segment reads it too
    step = Dependencies(records, TEMPLATES, (), {})
    first, second = cut_segments(step, (), ())
    assert (first.releases, second.releases) == ([], [step.register_of[received], step.register_of[later]])
    assert step.register_of[received] in second.frees[1]
    assert cut_segments(step, [step.register_of[received]], ())[1].releases == [step.register_of[later]]


def test_what_nobody_waits_for_is_done_when_the_step_before_is() -> None:
    """Momentum is multiplied between the sending of a parameter and its gradient's coming."""
    first, second = (1, 2), (3, 4)  # parameter and momentum
    records: list[object] = [EXPECT, 10, SECOND, EXPECT, 11, SECOND]
    for number, (parameter, momentum) in enumerate((first, second)):
        records += [SEND, parameter, SECOND, 90 + number, -1, 1, -1, 0, momentum, momentum]
    for (parameter, momentum), gradient in ((first, 10), (second, 11)):
        records += [1, -1, 0, momentum, gradient, 1, -1, 0, parameter, momentum]
    sizes = dict.fromkeys((*first, *second), 2**20)
    whole = Dependencies(records, TEMPLATES, (), {})
    previous = whole.as_previous_step(sizes, ())
    assert previous.deferrable == {1, 3}
    segments = cut_segments(Dependencies(records, TEMPLATES, (), {}, previous), (), ())
    assert [[item.index for item in each.items] for each in segments] == [[0], [2], [1, 3], [4, 5], [6, 7]]
    assert [each.after for each in segments] == [[], [], [], [0, 2], [1, 2]]
    wanted = Dependencies(records, TEMPLATES, (), {})
    assert wanted.as_previous_step(sizes, [wanted.register_of[1]]).deferrable == {1, 3}  # it was there before


def test_a_view_waits_with_who_uses_it() -> None:
    gradient, flipped, parameter = 10, 11, 1
    records: list[object] = [EXPECT, gradient, SECOND, 2, -1, flipped, gradient, 1, -1, 0, parameter, flipped]
    step = Dependencies(records, TEMPLATES, (), {}, PreviousStep({parameter: 1 << 5}))
    assert [len(each.items) for each in cut_segments(step, (), ())] == [2]
    seen = cut_segments(step, [step.register_of[flipped]], ())  # somebody may be waiting for it
    assert [len(each.items) for each in seen] == [1, 1]


def test_a_mistake_in_a_segment_affects_what_depends_on_it_and_nothing_else() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20) as client:
        table = argosy.place(torch.arange(4.0), FIRST)
        count = argosy.place(torch.zeros(1), FIRST)

        def step(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            with argosy.device(FIRST):
                count.add_(1)
                picked = torch.index_select(table, 0, index)
                fine = table * 2
            with argosy.device(SECOND):
                return picked + 1, fine + 1, count + 0

        captured = argosy.capture(step)
        for turn in range(8):
            good, bad = torch.tensor([turn % 4]), torch.tensor([9])
            picked, fine, counted = captured(good)
            assert picked.item() == turn % 4 + 1
            assert counted.item() == 2 * turn + 1
            broken, fine, counted = captured(bad)
            assert fine.tolist() == [1, 3, 5, 7]
            assert counted.item() == 2 * turn + 2
            with pytest.raises(argosy.RemoteError, match="index_select"):
                broken.item()
            client.synchronize()  # it was seen


def test_a_client_that_runs_far_ahead_gets_the_same() -> None:
    with cluster_here(worker=2) as target, argosy.connect(target, wait=20) as client:
        total = argosy.place(torch.zeros(3), FIRST)

        @argosy.capture
        def step(x: torch.Tensor) -> torch.Tensor:
            with argosy.device(SECOND):
                doubled = x * 2 + total
            with argosy.device(FIRST):
                total.add_(doubled - total)
            return doubled

        results = [step(torch.full((3,), float(n))) for n in range(300)]
        expected = torch.zeros(3)
        for n, result in enumerate(results[:40]):
            expected = torch.full((3,), 2.0 * n) + expected
            assert torch.equal(result.cpu(), expected)
        assert total.tolist() == [float(sum(2 * n for n in range(300)))] * 3
        assert client.ran(FIRST)["aten::add_.Tensor"] == client.ran(SECOND)["aten::add.Tensor"] == 300
