"""Every private name of torch that Argosy uses, under a name of ours; no other module reaches for one.

Above each stands the public behaviour that it stands for, or why the public way is not taken.
`tests/test_torch_private.py` fails by name when torch no longer has one, or when it no longer does this.
Names are bound once, at import, and attributes are read in C: a use here costs no Python frame.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import timedelta
from operator import attrgetter, methodcaller
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch._C import _distributed_c10d
from torch.nn.modules import batchnorm
from torch.utils import _python_dispatch, _pytree

_aten = torch.ops.aten

# `target.copy_(source)` for each pair.
foreach_copy_ = torch._foreach_copy_
# `tensor * factor`, for each.
foreach_mul = torch._foreach_mul
# `tensor.mul_(factor)` for each.
foreach_mul_ = torch._foreach_mul_
# `tensor.lerp_(end, weight)` for each pair.
foreach_lerp_ = torch._foreach_lerp_
# `torch.linalg.vector_norm(tensor)` for each.
foreach_norm = torch._foreach_norm
# The steps of torch.optim.SGD, Adagrad, Adam and AdamW with `fused=True`.
fused_sgd_ = torch._fused_sgd_
fused_adagrad_ = torch._fused_adagrad_
fused_adam_ = torch._fused_adam_
fused_adamw_ = torch._fused_adamw_

# How often a tensor was written to: what autograd compares before it uses a saved tensor.
version_of: Callable[[Tensor], int] = attrgetter("_version")
# Whether a tensor is a view of another, for autograd: whether `tensor._base` is there.
is_view = Tensor._is_view
# `tensor.values()`, of a sparse tensor that may not be coalesced.
sparse_values = Tensor._values
# 0 if no two elements of a tensor lie at the same address; 1 if some do, 2 if it is not known.
internal_overlap = torch._debug_has_internal_overlap
# `tensor.conj()` and `torch.imag(tensor.conj())` give tensors with these bits set.
set_conj: Callable[[Tensor, bool], None] = torch._C._set_conj
set_neg: Callable[[Tensor, bool], None] = torch._C._set_neg
# The same for all storage objects of one memory, on any device; `data_ptr()` is 0 for all that are empty.
storage_key: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")
# How many tensors and storage objects hold the memory of this key.
storage_uses: Callable[[int], int] = torch._C._storage_Use_Count
# A tensor of a subclass with a shape and no memory, as the page "Extending PyTorch" makes them.
make_wrapper: Any = torch.Tensor._make_wrapper_subclass
# As the `__torch_function__` of a subclass: no function is given to it, as if it were a plain tensor.
no_torch_function: Any = torch._C._disabled_torch_function_impl

# `torch.set_grad_enabled(on)`, without the object that puts it back.
set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled
# `with torch.inference_mode(on)`, which takes 3 us longer.
inference_mode: Callable[[bool], Any] = getattr(torch._C, "_InferenceMode")  # noqa: B009
# With an object of it, every operation of the thread goes to its `__torch_dispatch__`.
TorchDispatchMode = _python_dispatch.TorchDispatchMode
# Within it, neither dispatch modes nor subclasses of tensors see an operation.
without_dispatch: Any = torch._C._DisableTorchDispatch

# The node whose backward this thread runs, or None.
current_node: Callable[[], Any] = torch._C._current_autograd_node
# The number that the next node of this thread's graph gets.
next_sequence_number: Callable[[], int] = getattr(torch._C._autograd, "_get_sequence_nr")  # noqa: B009
# The number of a node.
sequence_number: Callable[[Any], int] = methodcaller("_sequence_nr")
# Which call of backward this thread is in; -1 outside of any.
graph_task: Callable[[], int] = torch._C._current_graph_task_id
# Calls a function when the current backward ends.
at_end_of_backward: Callable[[Any], None] = torch.autograd.Variable._execution_engine.queue_callback

# The class of `torch.ops.aten.add.Tensor`.
OpOverload = torch._ops.OpOverload
# Names, types and aliases of an operator's arguments and results, as `str(operator._schema)` prints them.
schema_of: Callable[[Any], Any] = attrgetter("_schema")
# `default`, `Tensor`, `out`: what comes after the last dot of an operator's name.
overload_name: Callable[[Any], str] = attrgetter("_overloadname")
# Whether an operator of this name has a kernel of its own for a dispatch key such as "CPU".
has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
# What `tensor.item()` calls for a dense tensor.
LOCAL_SCALAR = _aten._local_scalar_dense.default
# What these return, beside their first result, depends on the kernel that was chosen.
KERNEL_DEPENDENT = {
    _aten._fused_sdp_choice.default,
    _aten._native_batch_norm_legit.default,
    _aten._native_batch_norm_legit.no_stats,
    _aten._batch_norm_with_update.default,
    _aten._embedding_bag.default,
    _aten._embedding_bag_forward_only.default,
}

# What `named_parameters`, `named_buffers` and `named_children` list of one module, to look up and to replace.
parameters_of: Callable[[nn.Module], dict[str, nn.Parameter | None]] = attrgetter("_parameters")
buffers_of: Callable[[nn.Module], dict[str, Tensor | None]] = attrgetter("_buffers")
modules_of: Callable[[nn.Module], dict[str, nn.Module | None]] = attrgetter("_modules")
# A module's copy as `torch.nn.DataParallel` makes them: it shares all but parameters, buffers and children.
copy_for_device: Callable[[nn.Module], Any] = methodcaller("_replicate_for_data_parallel")
# What BatchNorm and InstanceNorm of every dimension derive from.
NormBase = batchnorm._NormBase
# What `Optimizer.register_step_pre_hook` and `register_step_post_hook` have registered, in order.
pre_hooks_of: Callable[[Any], dict[int, Callable[..., Any]]] = attrgetter("_optimizer_step_pre_hooks")
post_hooks_of: Callable[[Any], dict[int, Callable[..., Any]]] = attrgetter("_optimizer_step_post_hooks")
# An optimizer's attribute: set once it was stepped, so that a scheduler does not warn that it goes first.
STEP_WAS_CALLED = "_opt_called"


class TakesScale:
    """Base of an optimizer whose `step` GradScaler always calls, with `grad_scale` and `found_inf` set."""

    _step_supports_amp_scaling = True


def move_hooks(source: torch.optim.Optimizer, target: torch.optim.Optimizer) -> None:
    """What was to happen around the steps of one optimizer happens around those of another."""
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(target, hooks, getattr(source, hooks))
        setattr(source, hooks, OrderedDict())


# The leaves of nested lists, tuples and dicts, and what puts others in their places.
TreeSpec = _pytree.TreeSpec
tree_flatten = _pytree.tree_flatten
tree_unflatten = _pytree.tree_unflatten

# The Work that is done when a future is: what a process group in Python returns.
work_of_future: Callable[[Any], Any] = getattr(_distributed_c10d, "_create_work_from_future")  # noqa: B009
# What `torch.futures.Future` wraps in Python.
Future: Any = torch._C.Future


def gloo_options(timeout: float, devices: Iterable[Any], threads: int) -> Any:
    """The options of `torch.distributed.ProcessGroupGloo`, which has no public way to name devices."""
    options = torch.distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=timeout)
    options._devices = list(devices)
    options._threads = threads
    return options
