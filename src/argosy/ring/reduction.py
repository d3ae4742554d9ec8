"""The arithmetic of the ring: many tensors into one, always in the order of the ranks.

Half precision is summed in float32 and rounded once. A mean is divided and not multiplied by an inverse, so
that it is what torch's own `mean` gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

Operation = Literal["sum", "mean", "product", "min", "max", "and", "or", "xor"]
# What is summed in one go stays in the second-level cache together with the tensor it comes from.
_TILE_BYTES = 256 * 1024
NARROW = frozenset({torch.bfloat16, torch.float16})

_PAIRWISE = {
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}


def nothing(rule: str, dtype: torch.dtype) -> float:
    """What stands for a part that nobody gives: it leaves what it is combined with as it is, even a zero."""
    return torch.iinfo(dtype).min if rule == "max" and dtype != torch.bool else -0.0


def combine(
    out: torch.Tensor, inputs: Sequence[torch.Tensor], operation: Operation = "sum", divisor: int = 1
) -> None:
    """`out` becomes the inputs combined, first to last; for "mean", the sum divided by `divisor`.

    `out` may be the memory of one of the inputs only if that is the first or the second; of float32, it gets
    the sums of half precision as they are.
    """
    count = out.numel()
    wide = None
    step = max(1, _TILE_BYTES // out.element_size())
    if inputs[0].dtype in NARROW:
        wide = torch.empty(min(step, count), dtype=torch.float32)
    if wide is None and (len(inputs) == 1 or (len(inputs) == 2 and operation != "mean")):
        step = max(1, count)  # one pass only: nothing to keep in the cache for
    for begin in range(0, count, step):
        end = min(begin + step, count)
        parts = [each[begin:end] for each in inputs] if step < count else inputs
        target = out[begin:end] if step < count else out
        if wide is None:
            _combine(target, parts, operation, divisor)
        else:
            scratch = wide[: end - begin].copy_(parts[0])
            _combine(scratch, [scratch, *parts[1:]], operation, divisor)
            target.copy_(scratch)


def _combine(out: torch.Tensor, inputs: Sequence[torch.Tensor], operation: Operation, divisor: int) -> None:
    first, *rest = inputs
    if operation in ("sum", "mean"):
        if not rest:
            if out is not first:
                out.copy_(first)
        elif out.dtype == torch.bool:
            torch.bitwise_or(first, rest[0], out=out)
        else:
            torch.add(first, rest[0], out=out)
        for each in rest[1:]:
            if out.dtype == torch.bool:
                out.bitwise_or_(each)
            else:
                out.add_(each)
        if operation == "mean" and divisor != 1:
            if out.is_floating_point() or out.is_complex():
                out.div_(divisor)
            else:
                out.div_(divisor, rounding_mode="trunc")
        return
    apply = _PAIRWISE[operation]
    if not rest and out is not first:
        out.copy_(first)
    for number, each in enumerate(rest):
        apply(first if number == 0 else out, each, out=out)
