"""Operations whose results only running tells of: run at once, and described to the client that waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from argosy.protocol.remote_work import Reply
from argosy.remote.operations.kernel import Compiled
from argosy.remote.task.scheduler import Group, Step, Value
from argosy.remote.transport.tensor_codec import dtype_name
from argosy.torch_private import storage_key

if TYPE_CHECKING:
    from argosy.remote.task.client_session import Session


def probe(
    session: Session,
    request: int,
    number: int,
    first: int,
    site: int,
    inputs: list[int],
    floats: list[float],
    _: Sequence[torch.Tensor],
) -> None:
    """PROBE"""
    compiled = session.templates[number]
    values = [session.values[each] for each in inputs]
    writes = [values[each] for each in compiled.mutates]
    reads: Sequence[Value] = values
    if compiled.random:
        reads, writes = [*values, session.randomness], [*writes, session.randomness]
    session.submit(
        Step(lambda: _probe(session, request, compiled, values, floats, first, site)), reads, writes
    )


def _probe(
    session: Session,
    request: int,
    compiled: Compiled,
    inputs: list[Value],
    floats: list[float],
    first: int,
    site: int,
) -> None:
    tensors = [value.tensor for value in inputs]
    failed = next((f for v in inputs if (f := v.fault or v.group.fault) is not None), None)
    results: list[Any] = []
    if failed is None:
        try:
            for position in compiled.mutates:
                inputs[position].group.before_writing()
            joint = Group() if compiled.joint else None
            for number, output in enumerate(compiled.call(tensors, floats, session.generator)):
                results.append(_describe(output, tensors))
                if isinstance(output, torch.Tensor):
                    alias = results[-1][5]
                    value = Value((joint or Group()) if alias < 0 else inputs[alias].group)
                    value.tensor = output
                    session.values[first + number] = value
        except Exception as error:
            failed = session.faults.add(compiled.name, site, error)
    session.answer(Reply(request, [] if failed else results, failed))


def _describe(output: Any, inputs: Sequence[torch.Tensor]) -> list[Any]:
    if not isinstance(output, torch.Tensor):
        if output is not None and not isinstance(output, bool | int | float):
            raise TypeError(f"a result that cannot travel: {type(output).__name__}")
        return ["v", output]
    if output.layout is not torch.strided or output.is_quantized:
        raise TypeError(f"a tensor that remote devices do not know: {output.layout}, {output.dtype}")
    memory = storage_key(output.untyped_storage())
    shared = [n for n, each in enumerate(inputs) if storage_key(each.untyped_storage()) == memory]
    return [
        "t",
        dtype_name(output.dtype),
        list(output.shape),
        list(output.stride()),
        output.storage_offset(),
        shared[0] if shared else -1,
        [output.is_conj(), output.is_neg()],
    ]
