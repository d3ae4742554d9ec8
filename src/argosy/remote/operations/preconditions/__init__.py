"""Checks of what some of PyTorch's kernels assume, made before such a kernel runs for a client.

Autograd calls a backward kernel only with what its forward kernel has returned. So these kernels do not check
their arguments, and read or write outside a tensor's memory if sizes or indices do not match. A client may
send anything. A check takes some of the operation's arguments; it looks at shapes, and at values only where a
kernel uses them as indices. `tests/remote/fuzzing.py` finds what is missing here.
"""

from __future__ import annotations

from typing import Any

from argosy.remote.operations.preconditions import images, mathematics, networks, sequences
from argosy.remote.operations.preconditions.requirements import Check as Check
from argosy.torch_private import schema_of

CHECKS = images.CHECKS | mathematics.CHECKS | sequences.CHECKS | networks.CHECKS


def precondition_of(operation: Any) -> Check | None:
    """The check to call with an operation's arguments; it raises a ValueError. None if there is none."""
    schema = schema_of(operation)
    found = CHECKS.get(schema.name.removeprefix("aten::"))
    if found is None:
        return None
    check, names = found
    places = {argument.name: place for place, argument in enumerate(schema.arguments)}
    defaults = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
    wanted = [(places.get(name, len(places)), name, defaults.get(name)) for name in names.split()]

    # PyTorch refuses a call that lacks an argument or has one too many, so the kernel gets just these.
    def precondition(*args: Any, **kwargs: Any) -> None:
        given = len(args)
        check(*[args[at] if at < given else kwargs.get(name, default) for at, name, default in wanted])

    return precondition
