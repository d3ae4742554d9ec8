"""Every call of torch's own tables of samples: operations in all their forms, modules, optimizers. For tests
that look on while they run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

Call = Callable[[], Any]

DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16)


def copied(value: Any) -> Any:
    """The same arguments, for an operation to do with as it likes."""
    return tree_map(
        lambda t: t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else t,
        value,
    )


def differentiate(results: Any, inputs: Sequence[Any]) -> None:
    """Run the backward kernels too."""
    outputs = [t for t in tree_flatten(results)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
    wanted = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad]
    if outputs and wanted:
        torch.autograd.grad(outputs, wanted, [torch.ones_like(each) for each in outputs], allow_unused=True)


def calls_of_operations(dtypes: Sequence[torch.dtype], count: int) -> Iterator[Call]:
    """So many samples of each operation and dtype."""
    from torch.testing._internal import common_methods_invocations as tables

    for name in (
        "op_db",
        *(each for each in dir(tables) if each.startswith("foreach") and each.endswith("_db")),
    ):
        for info in getattr(tables, name):
            known = [dtype for dtype in dtypes if dtype in info.dtypes] or [*info.dtypes][:1]
            for dtype in known:
                grad = info.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
                for sample in islice(info.sample_inputs("cpu", dtype, requires_grad=grad), count):
                    yield from _forms(info, (sample.input, *sample.args), sample.kwargs)


def _forms(info: Any, args: Any, kwargs: Any) -> Iterator[Call]:
    def plain() -> None:
        mine, more = copied((args, kwargs))
        differentiate(info.op(*mine, **more), tree_flatten((mine, more))[0])

    def in_place() -> None:
        with torch.no_grad():
            mine, more = copied((args, kwargs))
            info.inplace_variant(*mine, **more)

    def to_memory() -> None:
        with torch.no_grad():
            (mine, more), (again, once_more) = copied((args, kwargs)), copied((args, kwargs))
            info.op(*mine, **more, out=copied(info.op(*again, **once_more)))

    yield plain
    if info.inplace_variant is not None:
        yield in_place
    if info.supports_out:
        yield to_memory


def calls_of_modules() -> Iterator[Call]:
    """All samples of each module, training and not."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        for training in (True, False):
            for sample in info.module_inputs_func(info, "cpu", torch.float32, True, training):

                def call(info: Any = info, sample: Any = sample, training: bool = training) -> None:
                    made, forward = sample.constructor_input, sample.forward_input
                    module = info.module_cls(*made.args, **made.kwargs).train(training)
                    results = module(*forward.args, **forward.kwargs)
                    inputs = tree_flatten((forward.args, forward.kwargs))[0]
                    differentiate(results, [*module.parameters(), *inputs])

                yield call


def calls_of_optimizers() -> Iterator[Call]:
    """A few steps with all options of each optimizer, one by one, as lists and fused."""
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        for options in info.optim_inputs_func("cpu"):
            for form in ({"foreach": False}, {"foreach": True}, {"fused": True}):

                def call(info: Any = info, kwargs: Any = {**options.kwargs, **form}) -> None:  # noqa: B006
                    parameters = [torch.randn(size, requires_grad=True) for size in ((3, 2), (4,))]
                    optimizer = info.optim_cls(parameters, **kwargs)

                    def closure() -> torch.Tensor:
                        optimizer.zero_grad()
                        loss = torch.stack([(each**2).sum() for each in parameters]).sum()
                        loss.backward()
                        return loss

                    for _ in range(3):
                        closure()
                        optimizer.step(closure if info.step_requires_closure else None)

                yield call


def run_all(calls: Iterator[Call], watch: TorchDispatchMode) -> tuple[int, int]:
    """How many went well, and how many torch itself could not run."""
    torch.manual_seed(0)
    done = failed = 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for operations so small, several only wait for each other
    try:
        with warnings.catch_warnings(), watch:
            warnings.simplefilter("ignore")
            for call in calls:
                try:
                    call()
                    done += 1
                except Exception:
                    failed += 1
    finally:
        torch.set_num_threads(threads)
    return done, failed
