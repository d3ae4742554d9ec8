"""The operations that a client may name: those of `allowed_operations.txt`, and no others.

`tests/remote/admitting.py` makes the list: arithmetic on dense tensors that torch's tables of samples need. A
new operation of PyTorch is not on it until someone adds it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import torch

from argosy.errors import WireError
from argosy.torch_private import OpOverload

ALLOWED = frozenset(files("argosy.remote.operations").joinpath("allowed_operations.txt").read_text().split())


def find_operation(name: str) -> Any:
    """The operation of this name; a WireError if a client may not name it."""
    if name not in ALLOWED:
        raise WireError(f"operation: expected one that remote devices run, got {name!r:.80}")
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)
    if not isinstance(found, OpOverload):
        raise WireError(f"operation: this task's PyTorch {torch.__version__} has no {name!r:.80}")
    return found
