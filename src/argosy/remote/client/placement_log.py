"""The placement log of `argosy.connect(log_device_placement=True)`: once for each operation and device."""

from __future__ import annotations

from argosy.events import say

_NAMES = {
    "mm": "MatMul",
    "bmm": "BatchMatMul",
    "matmul": "MatMul",
    "addmm": "MatMulAdd",
    "mul": "Mul",
    "sub": "Sub",
}


class PlacementLog:
    """Remembers what it has said."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def note(self, operation: str, device: str) -> None:
        """An operation runs on a device."""
        entry = (readable(operation), device)
        if entry not in self._said:
            self._said.add(entry)
            say(f"{entry[0]}: {entry[1]}")


def readable(operation: str) -> str:
    """`aten::native_layer_norm.default` as `NativeLayerNorm`; an in-place operation keeps its underscore."""
    name = operation.partition("::")[2].partition(".")[0]
    plain = name.strip("_")
    words = _NAMES.get(plain, "".join(word[:1].upper() + word[1:] for word in plain.split("_")))
    return f"{words}_" if name.endswith("_") and not name.startswith("__") else words
