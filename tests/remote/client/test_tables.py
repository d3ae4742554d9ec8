"""torch's own tables of samples, locally and remotely: the same bits, gradients included.

What differs, and why, is listed here and in docs/remote-devices.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from clusters import local_client
from torch.utils._pytree import tree_flatten, tree_map

import argosy
from argosy.remote.client.dispatch import RemoteTensor

DEVICE = "/job:local/task:0"

# What they return was never written to.
UNWRITTEN = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
# Not on remote devices: sparse tensors, an operation that reads its indices inside PyTorch, other sizes in
# place, and what trusts its caller.
REFUSED = {
    "sparse.sampled_addmm",
    "sparse.mm.reduce",
    "to_sparse",
    "tensor_split",
    "resize_",
    "resize_as_",
    "_unsafe_masked_index",
    "_unsafe_masked_index_put_accumulate",
}
# The gradient of a product with zeros takes another formula for any subclass of a tensor.
OTHER_BITS = {"prod"}
# torch itself cannot compare these.
INCOMPARABLE = {"chalf"}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def remote(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return argosy.place(value.detach(), DEVICE).requires_grad_(value.requires_grad)


def same(mine: Any, theirs: Any) -> bool:
    if not isinstance(mine, torch.Tensor):
        return bool(mine == theirs or (mine != mine and theirs != theirs))
    if isinstance(theirs, RemoteTensor):
        theirs = theirs.detach().cpu()
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return False
    return torch.equal(mine, theirs) or torch.equal(torch.nan_to_num(mine), torch.nan_to_num(theirs))


def outcome(function: Any, args: Any, kwargs: Any) -> tuple[list[Any], list[Any]]:
    """What a function returns, and the gradients of its inputs."""
    torch.manual_seed(1)
    results = tree_flatten(function(*args, **kwargs))[0]
    inputs = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    outputs = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
    if not inputs or not outputs:
        return results, []
    ones = [torch.ones_like(each) for each in outputs]
    return results, list(torch.autograd.grad(outputs, inputs, ones, allow_unused=True))


def agrees(function: Any, twin: Any, args: Any, kwargs: Any) -> bool | None:
    """Whether both give the same; None if the sample fails locally."""
    try:
        here = outcome(function, *tree_map(copied, (args, kwargs)))
    except Exception:
        return None
    there = outcome(twin, *tree_map(remote, (args, kwargs)))
    pairs = [*zip(here[0], there[0], strict=True), *zip(here[1], there[1], strict=True)]
    return all(same(mine, theirs) for mine, theirs in pairs)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_operations() -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    known = UNWRITTEN | REFUSED | OTHER_BITS | INCOMPARABLE
    agreed, differing = set(), {}
    with local_client():
        for info in op_db:
            name = ".".join(filter(None, (info.name, info.variant_test_name)))
            dtype = torch.float32 if torch.float32 in info.dtypes else next(iter(info.dtypes), torch.float32)
            grad = info.supports_autograd and dtype.is_floating_point
            torch.manual_seed(0)
            try:
                samples = info.sample_inputs("cpu", dtype, requires_grad=grad)
                # The second one: the first is a tensor without dimensions, as often as not.
                sample = list(islice(samples, 2))[-1]
                if agrees(info.op, info.op, (sample.input, *sample.args), sample.kwargs) is False:
                    differing[name] = "other bits"
            except Exception as error:
                differing[name] = f"{type(error).__name__}: {error}"
            if name not in differing:
                agreed.add(name)
    assert differing.keys() <= known, {name: why for name, why in differing.items() if name not in known}
    assert len(agreed) >= 600
    assert len(agreed) >= 0.95 * (len(agreed) + len(differing))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_modules() -> None:
    from torch.testing._internal.common_modules import module_db

    failed, count = {}, 0
    with local_client():
        for info in module_db:
            for training in (True, False):
                torch.manual_seed(0)
                inputs = info.module_inputs_func(info, "cpu", torch.float32, True, training)
                count += 1
                try:
                    for sample in inputs[:2]:
                        if sample.forward_input is not None and _module_differs(info, sample, training):
                            failed[info.name, training] = "other bits"
                except Exception as error:
                    failed[info.name, training] = f"{type(error).__name__}: {error}"
    assert not failed
    assert count >= 200


def _module_differs(info: Any, sample: Any, training: bool) -> bool:
    """A module made in a scope begins with the same parameters, and goes on with the same bits."""
    made = []
    for scope in (argosy.device(None), argosy.device(DEVICE)):
        torch.manual_seed(5)
        with scope:
            args, kwargs = tree_map(copied, (sample.constructor_input.args, sample.constructor_input.kwargs))
            made.append(info.module_cls(*args, **kwargs).train(training))
    mine, theirs = made
    forward = sample.forward_input
    if agrees(mine, theirs, forward.args, forward.kwargs) is False:
        return True
    return not all(
        same(a.detach(), b.detach()) for a, b in zip(mine.parameters(), theirs.parameters(), strict=True)
    )
