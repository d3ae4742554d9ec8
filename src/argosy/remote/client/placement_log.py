"""Operations in the words of the placement log: `MatMul` for `aten::mm`."""

from __future__ import annotations

_KNOWN = {
    "mm": "MatMul",
    "bmm": "BatchMatMul",
    "matmul": "MatMul",
    "addmm": "MatMulAdd",
    "mul": "Mul",
    "sub": "Sub",
}


def readable(operation: str) -> str:
    """`aten::native_layer_norm.default` as `NativeLayerNorm`; one that writes in place keeps its
    underscore.
    """
    name = operation.partition("::")[2].partition(".")[0]
    plain = name.strip("_")
    words = _KNOWN.get(plain, "".join(word[:1].upper() + word[1:] for word in plain.split("_")))
    return f"{words}_" if name.endswith("_") and not name.startswith("__") else words
