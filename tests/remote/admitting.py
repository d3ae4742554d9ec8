"""The rule by which `src/argosy/remote/operations/allowed_operations.txt` is made. To make it anew:

    python tests/remote/admitting.py

What torch's tables of samples dispatch is needed: operations, modules, optimizers, in place and with `out=`.
So are the other forms of the same operations, `out=` apart. What can be reached must be arithmetic on dense
tensors: nothing that takes a storage, a file or an object, and none of the families below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch_tables as tables
from torch.utils._python_dispatch import TorchDispatchMode

import argosy.remote.operations

LIST = Path(argosy.remote.operations.__file__).parent / "allowed_operations.txt"

# What programs use and the tables leave out.
ALSO = {
    "native_dropout",
    "_standard_gamma",
    "_standard_gamma_grad",
    "_sample_dirichlet",
    "_dirichlet_grad",
    "poisson",
    "binomial",
    "bartlett_window",
    "blackman_window",
    "hamming_window",
    "hann_window",
    "kaiser_window",
    "_amp_foreach_non_finite_check_and_unscale_",
    "_amp_update_scale_",
    "embedding_renorm_",
    "_pack_padded_sequence",
    "_weight_norm_interface",
    "_weight_norm_interface_backward",
    "_aminmax",
    "_embedding_bag_forward_only",
    "_assert_async",
    "_assert_tensor_metadata",
    "_linalg_check_errors",
    "_fused_sdp_choice",
    "is_nonzero",
    "native_channel_shuffle",
    "_masked_softmax",
    "_masked_softmax_backward",
}
# Python's own, made of the others.
WRITTEN_IN_PYTHON = {
    "torch_nn::_linear_cross_entropy_batch_chunked",
    "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
}
# Families that no client may name, and why.
NEVER = {
    r"sparse|_nested_|_jagged|coalesce|to_dense": "not dense tensors",
    r"quantize|mkldnn(?!_rnn_layer)|_mkldnn": "not tensors that travel",
    r"^set_?$|resize|storage|pin_memory|pinned|from_file|record_stream": "memory and files, not values",
    r"_unsafe_(?!view)|_efficientzerotensor|^_foreach_copy$": "the caller is trusted, or it crashes",
    r"^_local_scalar_dense$|^(alias|detach|detach_|lift_fresh)$": "the client does these itself",
    r"^can_cast$|^_(flash|efficient)_attention": "no kernel for a CPU",
}
_TRAVEL = re.compile(
    r"(?:Tensor|int|float|number|bool|str|Device|Generator)"
    r"|(?:List|Optional)\[(?:Tensor|int|float|number|bool|str|Device|Generator)\]"
    r"|List\[Optional\[Tensor\]\]|Optional\[List\[(?:int|float)\]\]"
)
_KERNELS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


class Names(TorchDispatchMode):
    """Writes down what is dispatched."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.seen.add(func.name())
        return func(*args, **(kwargs or {}))


def needed() -> set[str]:
    """What the tables dispatch."""
    names = Names()
    operations = tables.calls_of_operations(tables.DTYPES, 12)
    tables.run_all(chain(operations, tables.calls_of_modules(), tables.calls_of_optimizers()), names)
    return names.seen


def is_never(name: str) -> bool:
    """Whether an operation, without its overload, belongs to a family that no client may name."""
    return any(re.search(pattern, name) for pattern in NEVER)


def may_travel(operation: Any) -> bool:
    """Whether a CPU runs it, with arguments and results that a message can hold."""
    schema = operation._schema
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if not any(has_kernel(operation.name(), key) for key in _KERNELS):
        return False
    return all(_TRAVEL.fullmatch(str(each.type)) for each in (*schema.arguments, *schema.returns))


def find(name: str) -> Any:
    """The operation of a name that torch has."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def forms(packets: set[str]) -> Iterator[str]:
    """All forms of some operations, but those that write to `out`."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace != "aten" or packet.removesuffix("_") not in packets:
            continue
        found = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if found is not None and not _writes_to_out(found):
            yield name


def _writes_to_out(operation: Any) -> bool:
    return any(each.kwarg_only and each.alias_info is not None for each in operation._schema.arguments)


def admitted() -> list[str]:
    """The list."""
    seen = {name for name in needed() if name.startswith("aten::")}
    packets = {name.removeprefix("aten::").partition(".")[0] for name in seen} | ALSO
    found = {
        name
        for name in {*seen, *forms({each.removesuffix("_") for each in packets})}
        if not is_never(name.removeprefix("aten::").partition(".")[0]) and may_travel(find(name))
    }
    return sorted(found | WRITTEN_IN_PYTHON)


if __name__ == "__main__":
    LIST.write_text("\n".join(admitted()) + "\n")
