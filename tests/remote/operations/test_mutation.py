"""What operations write to: all of it counts, wherever it lies and whatever the schema says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
import torch_tables as tables
from clusters import cluster_here
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

import argosy
from argosy.remote.operations.mutation import mutated

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


def test_the_schema_or_the_table_says_it() -> None:
    aten, a, b, c = torch.ops.aten, *torch.ones(3, 2)
    norm = (torch.ones(2, 2), None, None, a, b)

    def names(operation: Any, *args: Any, **kwargs: Any) -> list[int]:
        found = mutated(operation, args, kwargs, torch.is_tensor)
        return [next(n for n, each in enumerate((a, b, c)) if each is one) for one in found]

    assert names(aten.add.Tensor, a, b) == []
    assert names(aten.add_.Tensor, a, b) == [0]
    assert names(aten.add.out, a, b, out=c) == [2]
    assert names(aten._foreach_add_.List, [a, b], [c, c]) == [0, 1]
    assert names(aten.native_batch_norm.default, *norm, True, 0.1, 1e-5) == [0, 1]
    assert names(aten.native_batch_norm.default, *norm, False, 0.1, 1e-5) == []
    assert names(aten._assert_async.default, a) == [0]


@pytest.mark.parametrize("wrap", [lambda step: step, argosy.capture], ids=["plain", "captured"])
@pytest.mark.parametrize("where", [PS, WORKER], ids=["with the buffers", "elsewhere"])
def test_statistics_of_a_batch_norm_are_kept(wrap: Callable[[Any], Any], where: str) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(8, 5) * 3 + 1 for _ in range(8)]
    here, there = nn.BatchNorm1d(5), nn.BatchNorm1d(5)
    expected = [here(batch).detach() for batch in batches]
    here.eval()
    with cluster_here(ps=1, worker=1) as target, argosy.connect(target, wait=20):
        there = argosy.place(there, PS)

        def step(batch: torch.Tensor) -> torch.Tensor:
            with argosy.device(where):
                result: torch.Tensor = there(batch).detach()
                return result

        step = wrap(step)
        for batch, result in zip(batches, expected, strict=True):
            assert torch.equal(step(batch).cpu(), result)
        for name, value in argosy.fetch(there.state_dict()).items():
            assert torch.equal(value, here.state_dict()[name]), name
        there.eval()
        with argosy.device(where):
            assert torch.equal(there(batches[0]).cpu(), here(batches[0]))


def test_a_batch_norm_runs_where_the_scope_says() -> None:
    with cluster_here(ps=1, worker=1) as target, argosy.connect(target, wait=20) as client:
        norm = argosy.place(nn.BatchNorm1d(5), PS)
        with argosy.device(WORKER):
            norm(torch.randn(8, 5))
        assert "aten::native_batch_norm" in client.ran(WORKER)
        assert "aten::native_batch_norm" not in client.ran(PS)


@pytest.mark.parametrize("wrap", [lambda step: step, argosy.capture], ids=["plain", "captured"])
def test_what_is_written_to_on_several_devices_is_written_on_each(wrap: Callable[[Any], Any]) -> None:
    with cluster_here(ps=1, worker=1) as target, argosy.connect(target, wait=20):
        mantissa = argosy.place(torch.zeros(2), PS)
        exponent = argosy.place(torch.zeros(2, dtype=torch.int32), WORKER)
        step = wrap(lambda x: torch.frexp(argosy.place(x, PS), out=(mantissa, exponent)) and None)
        for power in range(6):
            step(torch.tensor([2.0**power, 3.0]))
            assert mantissa.tolist() == [0.5, 0.75]
            assert exponent.tolist() == [power + 1, 2]


def test_the_state_of_a_fused_optimizer_may_lie_elsewhere() -> None:
    def train(parameter: torch.Tensor, move: bool) -> list[torch.Tensor]:
        optimizer = torch.optim.Adam([parameter], lr=0.1, fused=True)
        for step in range(4):
            parameter.grad = torch.full_like(parameter, 1.0 + step)
            optimizer.step()
            if move and not step:
                argosy.place(optimizer, WORKER)
        return [parameter.detach(), *optimizer.state[parameter].values()]

    expected = train(torch.ones(3, requires_grad=True), move=False)
    with cluster_here(ps=1, worker=1) as target, argosy.connect(target, wait=20):
        moved = argosy.fetch(train(argosy.place(torch.ones(3), PS).requires_grad_(), move=True))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(moved, expected, strict=True))


# --- torch's tables ---------------------------------------------------------------------------------------
class Watch(TorchDispatchMode):
    """Compares the arguments of every operation before and after it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()
        self.unsaid: dict[str, set[str]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        self.seen.add(func.name())
        said = {memory(each) for each in mutated(func, args, kwargs, is_plain)}
        arguments = func._schema.arguments
        values = [args[n] if n < len(args) else kwargs.get(a.name) for n, a in enumerate(arguments)]
        before = [
            (argument.name, each, bits(each))
            for argument, value in zip(arguments, values, strict=True)
            for each in tree_flatten(value)[0]
            if is_plain(each) and memory(each) not in said
        ]
        returned = func(*args, **kwargs)
        for name, each, was in before:
            if not torch.equal(bits(each), was):
                self.unsaid.setdefault(func.name(), set()).add(name)
        return returned


def is_plain(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return value.device.type == "cpu" and not value.is_quantized


def memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of its memory, all of it."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage).clone()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_kernel_writes_to_what_is_not_known() -> None:
    watch = Watch()
    calls = chain(tables.calls_of_operations([torch.float32], 4), tables.calls_of_modules())
    done, failed = tables.run_all(calls, watch)
    assert watch.unsaid == {}
    assert len(watch.seen) >= 600
    assert failed < done / 10
