"""Model buffers on the coordinator; and the gathers of workers."""

from __future__ import annotations

import msgspec
import torch

from argosy.server.gathers import Gathers
from argosy.server.model_buffers import ModelBuffers


def started(rule: str) -> ModelBuffers:
    buffers = ModelBuffers()
    values = {"mean": torch.zeros(2), "count": torch.tensor(0), "fixed": torch.ones(1)}
    buffers.initialise("mean" if rule == "mean" else "chief", values)
    return buffers


def test_what_the_chief_starts_with_is_copied() -> None:
    value = torch.zeros(2)
    buffers = ModelBuffers()
    buffers.initialise("chief", {"mean": value})
    value.fill_(7)
    assert buffers.everything()["mean"].tolist() == [0, 0]


def test_the_chiefs_count_and_those_of_others_do_not() -> None:
    buffers = started("chief")
    buffers.bring([(1, {"mean": torch.full((2,), 5.0)})])
    assert buffers.moving == {}
    buffers.bring([(0, {"mean": torch.full((2,), 3.0)})])
    assert {name: value.tolist() for name, value in buffers.moving.items()} == {"mean": [3, 3]}
    assert list(buffers.everything()) == ["mean", "count", "fixed"]


def test_the_mean_of_what_each_brought_last_and_of_counters_the_largest() -> None:
    buffers = started("mean")
    buffers.bring([(0, {"mean": torch.full((2,), 9.0), "count": torch.tensor(3)})])
    buffers.bring([(1, {"mean": torch.full((2,), 2.0), "count": torch.tensor(8)})])
    buffers.bring([(0, {"mean": torch.full((2,), 4.0), "count": torch.tensor(4)})])
    assert buffers.moving["mean"].tolist() == [3, 3]
    assert buffers.moving["count"].item() == 8
    assert list(buffers.moving) == ["mean", "count"]


def test_who_leaves_a_buffer_as_it_was_in_a_step_counts_with_that() -> None:
    """Also if it brought another value before, and if it has never brought one."""
    buffers = started("mean")
    buffers.bring([(0, {"count": torch.tensor(1)}), (1, {"mean": torch.full((2,), 4.0)})])
    assert buffers.moving["mean"].tolist() == [2, 2]
    buffers.bring([(0, {}), (1, {"mean": torch.full((2,), 8.0)})])
    assert buffers.moving["mean"].tolist() == [5, 5]


def test_the_mean_does_not_depend_on_who_came_first() -> None:
    values = [torch.tensor([x, x]) for x in (1e8, 1.0, -1e8)]
    results = []
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        buffers = started("mean")
        for worker in order:
            buffers.bring([(worker, {"mean": values[worker]})])
        results.append(buffers.moving["mean"])
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_buffer_of_another_kind_is_not_known() -> None:
    buffers = started("chief")
    assert buffers.known("mean", torch.zeros(2))
    assert not buffers.known("mean", torch.zeros(3))
    assert not buffers.known("mean", torch.zeros(2, dtype=torch.float64))
    assert not buffers.known("variance", torch.zeros(2))


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def test_a_gather_takes_place_when_everyone_is_there() -> None:
    gathers = Gathers()
    assert gathers.missing([0, 1]) == []
    gathers.attend(1, 1, raw("b"))
    assert list(gathers.take_place([0, 1])) == []
    assert gathers.missing([0, 1]) == [0]
    gathers.attend(1, 0, raw("a"))
    assert list(gathers.take_place([0, 1])) == [(1, {0: raw("a"), 1: raw("b")})]
    assert list(gathers.take_place([0, 1])) == []


def test_what_was_brought_is_in_the_order_of_workers() -> None:
    gathers = Gathers()
    for worker in (2, 0, 1):
        gathers.attend(1, worker, raw(worker))
    ((_, values),) = gathers.take_place([0, 1, 2])
    assert list(values) == [0, 1, 2]


def test_one_who_leaves_is_not_waited_for_and_what_it_brought_is_there() -> None:
    gathers = Gathers()
    gathers.attend(1, 0, raw(0))
    gathers.attend(1, 1, raw(1))
    assert list(gathers.take_place([0, 2])) == []
    assert list(gathers.take_place([0])) == [(1, {0: raw(0), 1: raw(1)})]


def test_gathers_take_place_in_order() -> None:
    gathers = Gathers()
    gathers.attend(2, 0, raw("second"))
    gathers.attend(1, 1, raw("first"))
    assert gathers.missing([0, 1]) == [0]
    gathers.attend(1, 0, raw("first"))
    assert [number for number, _ in gathers.take_place([0, 1])] == [1]
    assert gathers.missing([0, 1]) == [1]
