"""What a step has freed is there for the next one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from argosy.cluster.malloc import keep_freed_memory

# Four gradients of 50 MB, again and again: how often the kernel is asked for a page in the last ten steps.
_BODY = """
import resource, torch
from argosy.cluster.malloc import keep_freed_memory
keep_freed_memory()
def step():
    for gradient in [torch.empty(50 * 2**18) for _ in range(4)]:
        gradient[:: 1024].fill_(1)
for _ in range(8): step()  # until the heap is large enough
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10): step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is not glibc's")
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("own", "asks"), [({}, False), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, True)])
def test_pages_are_kept_unless_the_user_tunes_malloc(own: dict[str, str], asks: bool) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC", "GLIBC"))}
    done = subprocess.run(
        [sys.executable, "-c", _BODY], env=environ | own, capture_output=True, text=True, check=True
    )
    faults = int(done.stdout)
    every_page = 10 * 4 * 12_800
    assert faults >= every_page if asks else faults < every_page / 10


def test_without_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    keep_freed_memory({})
