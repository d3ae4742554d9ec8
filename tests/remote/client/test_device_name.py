"""Names of devices: TensorFlow's spellings, parts of names, scopes within scopes."""

from __future__ import annotations

import pytest

from argosy.cluster.spec import Task
from argosy.errors import ConfigError
from argosy.remote.client.device_name import DeviceName
from argosy.remote.client.placement_log import readable

HOME = Task("worker", 1)


@pytest.mark.parametrize(
    ("text", "task", "device"),
    [
        ("/job:ps/task:0", "/job:ps/task:0", "cpu:0"),
        ("/job:ps", "/job:ps/task:0", "cpu:0"),
        ("/gpu:0", "/job:worker/task:1", "gpu:0"),
        ("/device:GPU:1", "/job:worker/task:1", "gpu:1"),
        ("/cpu", "/job:worker/task:1", "cpu:0"),
        ("cpu:0", "/job:worker/task:1", "cpu:0"),
        ("/device:CPU:*", "/job:worker/task:1", "cpu:0"),
        ("/job:worker/replica:0/task:1/cpu:0", "/job:worker/task:1", "cpu:0"),
        ("/job:worker/replica:0/task:0/device:GPU:1", "/job:worker/task:0", "gpu:1"),
        ("/task:2", "/job:worker/task:2", "cpu:0"),
        ("", "/job:worker/task:1", "cpu:0"),
    ],
)
def test_spellings(text: str, task: str, device: str) -> None:
    found, kind = DeviceName.parse(text).complete(HOME)
    assert (str(found), kind) == (task, device)


@pytest.mark.parametrize(
    "text", ["/job:", "/tpu:0", "/job:a/job:b", "worker:0:1", "/replica:1", "/task:x", "//x:1"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="device"):
        DeviceName.parse(text)


@pytest.mark.parametrize(
    ("inner", "outer", "whole"),
    [
        ("/cpu:0", "/job:worker/task:1", ("/job:worker/task:1", "cpu:0")),
        ("/job:ps", "/job:worker/task:1", ("/job:ps/task:0", "cpu:0")),
        ("/task:0", "/job:worker/task:1/gpu:1", ("/job:worker/task:0", "gpu:1")),
        ("/cpu", "/job:ps/task:1/gpu:1", ("/job:ps/task:1", "cpu:0")),
    ],
)
def test_scopes_complete_each_other(inner: str, outer: str, whole: tuple[str, str]) -> None:
    task, kind = DeviceName.parse(inner).within(DeviceName.parse(outer)).complete(HOME)
    assert (str(task), kind) == whole


def test_operations_have_readable_names() -> None:
    names = ["aten::mm", "aten::add.Tensor", "aten::native_layer_norm.default", "aten::add_.Tensor"]
    assert [readable(name) for name in names] == ["MatMul", "Add", "NativeLayerNorm", "Add_"]
