"""Each private name of torch: that torch still has it, and that it still does what Argosy takes it for.

A test here that fails names what a new version of torch has changed; `argosy/torch_private.py` is the only
module to change then.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

import argosy
from argosy.launch.job import PRELOAD

SOURCE = Path(argosy.__file__).parent / "torch_private.py"
TREE = ast.parse(SOURCE.read_text())


def private_names() -> Iterator[str]:
    """The private names that the module binds, in full: `torch.utils._pytree.TreeSpec`."""
    places = {"torch": "torch", "Tensor": "torch.Tensor", "_aten": "torch.ops.aten"}
    for line in TREE.body:
        if isinstance(line, ast.ImportFrom) and (line.module or "").startswith("torch"):
            places |= {alias.name: f"{line.module}.{alias.name}" for alias in line.names}
    for node in ast.walk(TREE):
        if isinstance(node, ast.Attribute):
            root, _, rest = ast.unparse(node).partition(".")
            if root in places and "._" in (full := f"{places[root]}.{rest}"):
                yield full
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) == 2:
            place, name = node.args
            root, _, rest = ast.unparse(place).partition(".")
            if isinstance(name, ast.Constant):
                yield ".".join(filter(None, [places[root], rest, str(name.value)]))


def bound_names() -> list[str]:
    """What other modules import from it."""
    names = []
    for node in TREE.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names += [target.id for target in targets if isinstance(target, ast.Name)]
        names += [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
    return [name for name in names if not name.startswith("_")]


def the(name: str) -> Any:
    """Imported late: a name that torch has lost fails the tests below, not the collection of this file."""
    return getattr(importlib.import_module("argosy.torch_private"), name)


@pytest.mark.parametrize("name", sorted(set(private_names())))
def test_torch_has(name: str) -> None:
    found: Any = torch
    for part in name.split(".")[1:]:
        assert hasattr(found, part), f"torch {torch.__version__} has no {name}: see {SOURCE.name}"
        found = getattr(found, part)


def test_every_name_has_a_test() -> None:
    untested = [name for name in bound_names() if f"test_{name}" not in globals()]
    assert not untested


# --- many tensors in one call -----------------------------------------------------------------------------
def some() -> list[Tensor]:
    return [torch.arange(4.0), torch.full((2, 3), 2.0)]


def test_foreach_copy_() -> None:
    targets, sources = some(), [torch.randn(4), torch.randn(2, 3)]
    the("foreach_copy_")(targets, sources, non_blocking=False)
    assert all(map(torch.equal, targets, sources))


def test_foreach_mul() -> None:
    assert all(map(torch.equal, the("foreach_mul")(some(), 3.0), [each * 3.0 for each in some()]))


def test_foreach_mul_() -> None:
    tensors = some()
    the("foreach_mul_")(tensors, 3.0)
    assert all(map(torch.equal, tensors, [each * 3.0 for each in some()]))


def test_foreach_lerp_() -> None:
    tensors, ends = some(), [torch.randn(4), torch.randn(2, 3)]
    expected = [each.lerp(end, 0.25) for each, end in zip(tensors, ends, strict=True)]
    the("foreach_lerp_")(tensors, ends, 0.25)
    assert all(map(torch.equal, tensors, expected))


def test_foreach_norm() -> None:
    norms = the("foreach_norm")(some())
    torch.testing.assert_close(list(norms), [torch.linalg.vector_norm(each) for each in some()])


def stepped(optimizer: type[torch.optim.Optimizer], **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A parameter before and after one fused step, and its gradient."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(5))
    before, parameter.grad = parameter.detach().clone(), torch.randn(5)
    optimizer([parameter], fused=True, **options).step()  # type: ignore[call-arg]
    return before, parameter.detach(), parameter.grad


def test_fused_sgd_() -> None:
    mine, after, gradient = stepped(torch.optim.SGD, lr=0.1, momentum=0.9)
    values = {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False}
    the("fused_sgd_")([mine], [gradient], [torch.zeros(5)], **values, maximize=False, is_first_step=True)
    assert torch.equal(mine, after)


def test_fused_adagrad_() -> None:
    mine, after, gradient = stepped(torch.optim.Adagrad, lr=0.1)
    lists = [[mine], [gradient], [torch.zeros(5)], [torch.tensor(1.0)]]
    the("fused_adagrad_")(*lists, lr=0.1, lr_decay=0.0, weight_decay=0.0, eps=1e-10, maximize=False)
    assert torch.equal(mine, after)


@pytest.mark.parametrize(("name", "optimizer"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_fused_adam_(name: str, optimizer: type[torch.optim.Optimizer]) -> None:
    mine, after, gradient = stepped(optimizer, lr=0.1, weight_decay=0.5)
    lists = [[mine], [gradient], [torch.zeros(5)], [torch.zeros(5)], [], [torch.tensor(1.0)]]
    values = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.5, "eps": 1e-8}
    the(f"fused_{name}_")(*lists, amsgrad=False, maximize=False, **values)
    assert torch.equal(mine, after)


test_fused_adamw_ = test_fused_adam_


# --- tensors ----------------------------------------------------------------------------------------------
def test_version_of() -> None:
    tensor = torch.zeros(2)
    before = the("version_of")(tensor)
    tensor.add_(1)
    assert the("version_of")(tensor) == before + 1


def test_is_view() -> None:
    tensor = torch.zeros(4)
    assert the("is_view")(tensor[:2])
    assert not the("is_view")(tensor)


def test_sparse_values() -> None:
    twice = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([2.0, 3.0]), (4,), check_invariants=True
    )
    assert not twice.is_coalesced()
    assert the("sparse_values")(twice).tolist() == [2.0, 3.0]


def test_internal_overlap() -> None:
    overlap = the("internal_overlap")
    assert overlap(torch.zeros(2, 3).t()) == 0
    assert overlap(torch.zeros(1).expand(3)) == 1
    assert overlap(torch.zeros(9).as_strided((3, 3), (1, 1))) == 2


def test_set_conj() -> None:
    tensor = torch.tensor([1 + 2j])
    the("set_conj")(tensor, True)
    assert tensor.is_conj()
    assert tensor.resolve_conj().item() == 1 - 2j


def test_set_neg() -> None:
    tensor = torch.tensor([2.0])
    the("set_neg")(tensor, True)
    assert tensor.is_neg()
    assert tensor.resolve_neg().item() == -2.0


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_storage_key(device: str) -> None:
    key = the("storage_key")
    one, other = torch.zeros(0, device=device), torch.zeros(0, device=device)
    assert key(one.untyped_storage()) == key(one.detach().untyped_storage())
    assert key(one.untyped_storage()) != key(other.untyped_storage())


def test_storage_uses() -> None:
    tensor = torch.zeros(4)
    storage = tensor.untyped_storage()
    before = the("storage_uses")(the("storage_key")(storage))
    view = tensor[:2]
    assert the("storage_uses")(the("storage_key")(storage)) == before + 1
    del view
    assert the("storage_uses")(the("storage_key")(storage)) == before


class Wrapper(Tensor):
    """A tensor without memory, which counts what comes to it."""

    calls = 0

    @classmethod
    def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
        cls.calls += 1
        return torch.zeros(3)


def test_make_wrapper() -> None:
    tensor = the("make_wrapper")(Wrapper, (3,), strides=(1,), dtype=torch.float64, device=torch.device("cpu"))
    assert (type(tensor), tensor.shape, tensor.dtype) == (Wrapper, (3,), torch.float64)
    before = Wrapper.calls
    assert type(tensor + 1) is Tensor
    assert Wrapper.calls == before + 1


def test_no_torch_function() -> None:
    class Plain(Tensor):
        __torch_function__ = the("no_torch_function")

    class Marked(Tensor):
        pass

    assert type(torch.zeros(2).as_subclass(Plain) + 1) is Tensor
    assert type(torch.zeros(2).as_subclass(Marked) + 1) is Marked


# --- modes ------------------------------------------------------------------------------------------------
def test_set_grad_enabled() -> None:
    with torch.enable_grad():
        the("set_grad_enabled")(False)
        assert not torch.is_grad_enabled()
        the("set_grad_enabled")(True)
        assert torch.is_grad_enabled()


def test_inference_mode() -> None:
    with torch.inference_mode():
        tensor = torch.zeros(2)
    with the("inference_mode")(True):
        assert torch.is_inference_mode_enabled()
        tensor.add_(1)
    assert not torch.is_inference_mode_enabled()


def test_TorchDispatchMode() -> None:  # noqa: N802
    seen: list[Any] = []

    class Seeing(the("TorchDispatchMode")):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Seeing():
        torch.zeros(2) + 1
    torch.zeros(2) * 2
    assert torch.ops.aten.add.Tensor in seen
    assert torch.ops.aten.mul.Tensor not in seen


def test_without_dispatch() -> None:
    class Refusing(the("TorchDispatchMode")):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(func)

    with Refusing(), the("without_dispatch")():
        assert (torch.zeros(2) + 1).tolist() == [1, 1]


# --- autograd ---------------------------------------------------------------------------------------------
class Asking(torch.autograd.Function):
    """Twice its input; in backward it asks what `ask` asks."""

    asked: Any = None
    ask: Any = None

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Asking.asked = Asking.ask()
        return gradient * 2


def asked_in_backward(ask: Any) -> tuple[Any, Any]:
    """What it says in backward, and the node of that backward."""
    Asking.ask = ask
    result = Asking.apply(torch.ones((), requires_grad=True))  # type: ignore[no-untyped-call]
    result.backward()
    return Asking.asked, result.grad_fn


def test_current_node() -> None:
    assert the("current_node")() is None
    asked, node = asked_in_backward(the("current_node"))
    assert asked is node


def test_next_sequence_number() -> None:
    leaf, expected = torch.ones(2, requires_grad=True), the("next_sequence_number")()
    assert the("sequence_number")((leaf * 2).grad_fn) == expected
    assert the("next_sequence_number")() == expected + 1


test_sequence_number = test_next_sequence_number


def test_graph_task() -> None:
    assert the("graph_task")() == -1
    first, second = asked_in_backward(the("graph_task"))[0], asked_in_backward(the("graph_task"))[0]
    assert -1 < first < second


def test_at_end_of_backward() -> None:
    order: list[str] = []

    def ask() -> None:
        the("at_end_of_backward")(lambda: order.append("end"))
        order.append("within")

    asked_in_backward(ask)
    assert order == ["within", "end"]


# --- operators --------------------------------------------------------------------------------------------
ADD = torch.ops.aten.add


def test_OpOverload() -> None:  # noqa: N802
    assert isinstance(ADD.Tensor, the("OpOverload"))
    assert not isinstance(ADD, the("OpOverload"))


def test_the_public_attributes_of_operators() -> None:
    assert ADD.Tensor.overloadpacket is ADD
    assert ADD.Tensor.op(torch.ones(2), torch.ones(2)).tolist() == [2, 2]


def test_schema_of() -> None:
    schema = the("schema_of")(ADD.out)
    assert schema.name == "aten::add"
    assert [argument.name for argument in schema.arguments] == ["self", "other", "alpha", "out"]
    assert schema.is_mutable
    assert schema.arguments[-1].kwarg_only
    assert schema.returns[0].alias_info is not None
    assert the("schema_of")(ADD.Tensor).returns[0].alias_info is None


def test_overload_name() -> None:
    assert the("overload_name")(ADD.Tensor) == "Tensor"
    assert the("overload_name")(torch.ops.aten.relu.default) == "default"


def test_has_kernel() -> None:
    has_kernel = the("has_kernel")
    assert has_kernel("aten::add.out", "CPU")
    assert has_kernel("aten::matmul", "CompositeImplicitAutograd")
    assert not has_kernel("aten::matmul", "CPU")


def called_by(work: Any) -> set[Any]:
    """The operators that it calls."""
    seen: set[Any] = set()

    class Seeing(the("TorchDispatchMode")):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.add(func)
            return func(*args, **(kwargs or {}))

    with Seeing():
        work()
    return seen


def test_LOCAL_SCALAR() -> None:  # noqa: N802
    tensor = torch.ones(())
    assert called_by(tensor.item) == {the("LOCAL_SCALAR")}


def test_KERNEL_DEPENDENT() -> None:  # noqa: N802
    """Each is what a public function of torch calls or computes."""
    ops = {each.name().removeprefix("aten::"): each for each in the("KERNEL_DEPENDENT")}
    table, indices, offsets = torch.randn(4, 2), torch.tensor([0, 1]), torch.tensor([0])
    for name in ("_embedding_bag", "_embedding_bag_forward_only"):
        table.requires_grad_(name == "_embedding_bag")
        assert called_by(lambda: F.embedding_bag(indices, table, offsets)) == {ops.pop(name)}
    query = torch.randn(1, 1, 4, 4)
    assert ops.pop("_fused_sdp_choice")(query, query, query) == SDPBackend.FLASH_ATTENTION.value
    values, mean, variance, weight, bias = torch.randn(8, 2), *torch.rand(4, 2)
    expected = F.batch_norm(values, mean.clone(), variance.clone(), weight, bias, training=True)
    for name in ("_native_batch_norm_legit", "_batch_norm_with_update", "_native_batch_norm_legit.no_stats"):
        running = [] if name.endswith("no_stats") else [mean.clone(), variance.clone()]
        training = [True] if name.startswith("_native") else []
        assert torch.equal(ops.pop(name)(values, weight, bias, *running, *training, 0.1, 1e-5)[0], expected)
    assert not ops


# --- modules and optimizers -------------------------------------------------------------------------------
def test_parameters_of() -> None:
    module = nn.Linear(2, 2, bias=False)
    assert list(the("parameters_of")(module)) == ["weight", "bias"]
    assert the("parameters_of")(module)["bias"] is None
    other = the("parameters_of")(module)["weight"] = nn.Parameter(torch.zeros(2, 2))
    assert module.weight is other


def test_buffers_of() -> None:
    module = nn.BatchNorm1d(2)
    other = the("buffers_of")(module)["running_mean"] = torch.ones(2)
    assert module.running_mean is other
    assert dict(module.named_buffers()).keys() == the("buffers_of")(module).keys()


def test_modules_of() -> None:
    module = nn.Sequential(nn.ReLU())
    other = the("modules_of")(module)["0"] = nn.Tanh()
    assert module[0] is other


def test_copy_for_device() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2))
    module.note = "shared"  # type: ignore[assignment]
    other = the("copy_for_device")(module)
    assert (type(other), other.note) == (nn.Sequential, "shared")
    the("modules_of")(other)["0"] = None
    assert isinstance(module[0], nn.BatchNorm1d)
    norm = the("copy_for_device")(module[0])
    assert the("parameters_of")(norm) == {}
    the("buffers_of")(norm)["running_mean"] = None
    assert module[0].running_mean is not None


def test_NormBase() -> None:  # noqa: N802
    for kind in (nn.BatchNorm1d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm2d):
        assert issubclass(kind, the("NormBase"))
    assert not issubclass(nn.LayerNorm, the("NormBase"))


def one_parameter() -> list[nn.Parameter]:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return [parameter]


def test_pre_hooks_of() -> None:
    optimizer = torch.optim.SGD(one_parameter())

    def hook(*_: Any) -> None:
        pass

    optimizer.register_step_pre_hook(hook)
    assert list(the("pre_hooks_of")(optimizer).values()) == [hook]
    optimizer.register_step_post_hook(hook)
    assert list(the("post_hooks_of")(optimizer).values()) == [hook]


test_post_hooks_of = test_pre_hooks_of


def test_move_hooks() -> None:
    calls: list[Any] = []
    source, target = torch.optim.SGD(one_parameter()), torch.optim.SGD(one_parameter())
    source.register_step_pre_hook(lambda *_: calls.append("before"))
    source.register_step_post_hook(lambda *_: calls.append("after"))
    the("move_hooks")(source, target)
    source.step()
    assert calls == []
    target.step()
    assert calls == ["before", "after"]


@pytest.mark.parametrize("marked", [False, True])
def test_STEP_WAS_CALLED(marked: bool) -> None:  # noqa: N802
    optimizer = torch.optim.SGD(one_parameter())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    if marked:
        setattr(optimizer, the("STEP_WAS_CALLED"), True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        scheduler.step()
    assert any("before `optimizer.step()`" in str(each.message) for each in said) is not marked


def test_TakesScale() -> None:  # noqa: N802
    given: list[Any] = []

    class Scaled(the("TakesScale"), torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            given.append((self.grad_scale.item(), self.found_inf.item()))

    parameter = nn.Parameter(torch.ones(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale((parameter * torch.inf).sum()).backward()
    scaler.step(Scaled([parameter]))
    assert given == [(4.0, 1.0)]


# --- nested arguments -------------------------------------------------------------------------------------
def test_tree_flatten() -> None:
    nested = {"a": [1, (2, None)], "b": 3}
    leaves, spec = the("tree_flatten")(nested)
    assert leaves == [1, 2, None, 3]
    assert isinstance(spec, the("TreeSpec"))
    assert the("tree_unflatten")([4, 5, 6, 7], spec) == {"a": [4, (5, 6)], "b": 7}


test_tree_unflatten = test_tree_flatten
test_TreeSpec = test_tree_flatten  # noqa: N816


# --- torch.distributed ------------------------------------------------------------------------------------
def test_work_of_future() -> None:
    future: Any = torch.futures.Future()
    work = the("work_of_future")(future)
    assert not work.is_completed()
    future.set_result([])
    assert work.is_completed()


def test_Future() -> None:  # noqa: N802
    assert issubclass(torch.futures.Future, the("Future"))
    future = the("Future")([])
    assert not future.done()
    future.set_result([1])
    assert future.wait() == [1]


def test_gloo_options() -> None:
    device = torch.distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")
    store: Any = torch.distributed.HashStore()
    options = the("gloo_options")(30.0, [device], threads=2)
    group: Any = torch.distributed.ProcessGroupGloo(store, 0, 1, options)
    tensor = torch.ones(2)
    group.allreduce([tensor]).wait()
    assert tensor.tolist() == [1, 1]


# --- by name only -----------------------------------------------------------------------------------------
def test_operators_with_preconditions_are_there() -> None:
    checks = importlib.import_module("argosy.remote.operations.preconditions").CHECKS
    missing = [name for name in checks if not hasattr(torch.ops.aten, name)]
    assert not missing


@pytest.mark.parametrize("module", PRELOAD)
def test_what_a_task_preloads_is_there(module: str) -> None:
    importlib.import_module(module)


def test_the_first_optimizer_imports_dynamo() -> None:
    """Or else it need not be preloaded."""
    code = "import sys, torch; torch.optim.SGD([torch.ones(1)]); sys.exit('torch._dynamo' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=100).returncode == 0
