"""Which operations a client may name, and what they refuse to be given: a task outlives every client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import admitting
import pytest
import torch
from clusters import Processes, cluster_here, local_client, processes

import argosy
from argosy.errors import RemoteError, TaskLost, WireError
from argosy.remote.client.shape_inference import Unsupported
from argosy.remote.operations.allowed import ALLOWED, find_operation
from argosy.remote.operations.instructions import DEFINE, Template
from argosy.remote.operations.preconditions import CHECKS
from argosy.torch_private import schema_of

HERE = "/job:local/task:0"
TASK = "/job:worker/task:0"
aten = torch.ops.aten


# --- the list ---------------------------------------------------------------------------------------------
def test_the_list_holds_arithmetic_on_dense_tensors_only() -> None:
    lines = admitting.LIST.read_text().splitlines()
    assert lines == sorted({*lines}), "sorted, and each once"
    for name in {*lines} - admitting.WRITTEN_IN_PYTHON:
        namespace, _, rest = name.partition("::")
        assert namespace == "aten", name
        assert not admitting.is_never(rest.partition(".")[0]), name
        assert admitting.may_travel(find_operation(name)), name


def test_each_check_is_of_an_operation_on_the_list() -> None:
    assert CHECKS.keys() <= {name.removeprefix("aten::").partition(".")[0] for name in ALLOWED} | {"random"}


@pytest.mark.parametrize("name", CHECKS)
def test_each_check_takes_arguments_that_the_operation_has(name: str) -> None:
    """Others would be None in every call, and nothing of them would be checked."""
    packet = getattr(torch.ops.aten, name)
    forms = [schema_of(getattr(packet, overload)) for overload in packet.overloads()]
    assert {*CHECKS[name][1].split()} <= {argument.name for form in forms for argument in form.arguments}


@pytest.mark.parametrize(
    "name",
    [
        "aten::save",
        "aten::from_file",
        "aten::set_.source_Storage",
        "aten::set_.source_Tensor",
        "aten::resize_",
        "aten::_pin_memory",
        "aten::_unsafe_index.Tensor",
        "aten::_sparse_coo_tensor_unsafe",
        "aten::_print",
        "aten::add",
        "aten::add.Tensor.out",
        "aten::__class__",
        "prims::add",
        "prim::Print",
        "quantized::linear",
        "profiler::_record_function_enter",
        "add",
        "",
    ],
)
def test_what_is_not_on_the_list_is_not_found(name: str) -> None:
    with pytest.raises(WireError, match="expected one that remote devices run"):
        find_operation(name)


def test_a_program_is_told_at_once() -> None:
    with local_client():
        tensor = argosy.place(torch.ones(3), HERE)
        with pytest.raises(Unsupported, match=r"aten::_unsafe_index.Tensor is not among the operations"):
            aten._unsafe_index(tensor, [argosy.place(torch.tensor([7]), HERE)])


def test_a_client_that_names_another_is_cut_off_and_nobody_else() -> None:
    with cluster_here(worker=1) as target, argosy.connect(target, wait=20):
        kept = argosy.place(torch.ones(3), TASK)
        client = argosy.connect(target, wait=20)
        with client.lock:
            template = Template(0, "aten::save", [], {}, 0, 0, "cpu:0", (), None)
            client.outboxes[TASK].batch.extend((DEFINE, template))
        with pytest.raises(TaskLost, match=r"expected one that remote devices run, got 'aten::save'"):
            client.synchronize()
        client.close()
        assert kept.sum().item() == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_list_is_what_the_rule_makes() -> None:
    made, listed = {*admitting.admitted()}, ALLOWED
    assert made - listed == set(), "needed, and not on the list: run tests/remote/admitting.py"
    assert listed - made == set(), "on the list without need"


# --- what they refuse to be given -------------------------------------------------------------------------
@pytest.fixture(scope="module")
def served() -> Iterator[Processes]:
    with processes(worker=1) as found:
        yield found


def there(
    *values: float, shape: tuple[int, ...] | None = None, dtype: torch.dtype = torch.int64
) -> torch.Tensor:
    return argosy.place(torch.tensor(values, dtype=dtype).reshape(shape or (-1,)), TASK)


def floats(*shape: int) -> torch.Tensor:
    return argosy.place(torch.ones(shape), TASK)


FAR = 10**12
BAD: dict[str, Callable[[], torch.Tensor | tuple[torch.Tensor, ...] | None]] = {
    "segment_reduce": lambda: torch.segment_reduce(floats(4), "sum", lengths=there(FAR), unsafe=True),
    "_segment_reduce_backward": lambda: aten._segment_reduce_backward(
        floats(1), floats(1), floats(4), "sum", lengths=there(FAR)
    ),
    "max_pool2d_with_indices_backward": lambda: aten.max_pool2d_with_indices_backward(
        floats(1, 1, 1), floats(1, 2, 2), [2, 2], [2, 2], [0, 0], [1, 1], False, there(FAR, shape=(1, 1, 1))
    ),
    "adaptive_max_pool2d_backward": lambda: aten.adaptive_max_pool2d_backward(
        floats(1, 1, 1), floats(1, 2, 2), there(-FAR, shape=(1, 1, 1))
    ),
    "avg_pool2d_backward": lambda: aten.avg_pool2d_backward(
        floats(20_000, 64, 1, 1), floats(1, 64, 2, 2), [2, 2], [2, 2], [0, 0], False, True, None
    ),
    "embedding_dense_backward": lambda: aten.embedding_dense_backward(floats(1, 5), there(FAR), 3, -1, True),
    "_embedding_bag": lambda: aten._embedding_bag(floats(3, 5), there(0, 1), there(0, -FAR)),
    "nll_loss2d_backward": lambda: aten.nll_loss2d_backward(
        floats(), floats(1, 2, 1, 1), there(FAR, shape=(1, 1, 1)), None, 1, -100, floats()
    ),
    "_ctc_loss_backward": lambda: aten._ctc_loss_backward(
        floats(1), floats(5, 1, 3), there(FAR, FAR, shape=(1, 2)), [5], [2], floats(1), floats(1, 5, 5), 0
    ),
    "native_batch_norm": lambda: aten.native_batch_norm(
        floats(3, 200_000), None, None, floats(0), floats(0), False, 0.1, 1e-5
    ),
    "native_layer_norm_backward": lambda: aten.native_layer_norm_backward(
        floats(200_000, 3), floats(200_000, 3), [3], floats(1), floats(0), None, None, [True, True, False]
    ),
    "_fft_c2c": lambda: aten._fft_c2c(floats(3).to(torch.complex64), [FAR], 0, True),
    "_fused_sgd_": lambda: aten._fused_sgd_(
        [floats(2_000_000)],
        [floats(1)],
        [],
        weight_decay=0.0,
        momentum=0.0,
        lr=1.0,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    ),
}


@pytest.mark.processes
@pytest.mark.parametrize("name", sorted(BAD))
def test_what_would_end_a_task_is_an_error(served: Processes, name: str) -> None:
    def program() -> None:
        with argosy.connect(served.target, wait=60):
            BAD[name]()

    with pytest.raises(RemoteError, match=rf"aten::{name}\b.*failed on {TASK}: ValueError"):
        program()
    assert served.tasks[TASK].poll() is None


def test_a_captured_step_refuses_it_too() -> None:
    with local_client():
        image = argosy.place(torch.arange(16.0).reshape(1, 4, 4), HERE)
        gradient = argosy.place(torch.ones(1, 2, 2), HERE)

        @argosy.capture
        def backward(indices: torch.Tensor) -> torch.Tensor:
            sizes = [2, 2], [2, 2], [0, 0], [1, 1], False
            made: torch.Tensor = aten.max_pool2d_with_indices_backward(gradient, image, *sizes, indices)
            return made

        good = torch.tensor([[[5, 7], [13, 15]]])
        for turn in range(12):
            result = backward(good * FAR if turn % 3 == 2 else good)
            if turn % 3 == 2:
                with pytest.raises(RemoteError, match="indices: expected 0 to 15"):
                    result.cpu()
            else:
                assert result.sum().item() == 4


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_no_operation_ends_a_task_whatever_it_is_given() -> None:
    program = Path(__file__).parents[1] / "fuzzing.py"
    done = subprocess.run([sys.executable, program, "0", "40"], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert done.returncode == 0, done.stderr
