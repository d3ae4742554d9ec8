"""What some of PyTorch's kernels take for granted, checked before they run for a client.

Autograd only ever calls a backward kernel with what its forward kernel has returned, so these do not check
their arguments, and read or write beyond a tensor's memory where sizes or indices do not agree. A client may
send anything. A check has the names of the operation's own arguments; it looks at shapes, and at values only
where a kernel uses them as indices. `tests/remote/fuzzing.py` finds what is missing here.
"""

from __future__ import annotations

from typing import Any

from argosy.remote.operations.preconditions import images, mathematics, networks, sequences
from argosy.remote.operations.preconditions.requirements import Check as Check
from argosy.torch_private import schema_of

CHECKS = images.CHECKS | mathematics.CHECKS | sequences.CHECKS | networks.CHECKS


def precondition_of(operation: Any) -> Check | None:
    """To be called with an operation's arguments before it; it raises a ValueError. None: there is none."""
    return CHECKS.get(schema_of(operation).name.removeprefix("aten::"))
