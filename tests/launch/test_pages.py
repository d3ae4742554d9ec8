"""Tasks ask for large pages, unless the user has said otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import Launcher

_ALLOWED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# Sixteen blocks as large as a layer's gradient, and how much of them lies in large pages, in kB.
_BODY = """
import re
blocks = [b"x" * 1_500_000 for _ in range(16)]
print(re.search(r"AnonHugePages:\\s+(\\d+)", open("/proc/self/smaps_rollup").read())[1])
"""


@pytest.mark.skipif(
    not _ALLOWED.exists() or "[never]" in _ALLOWED.read_text(), reason="this kernel gives no large pages"
)
@pytest.mark.timeout(60)
def test_what_a_task_allocates_lies_in_large_pages(launcher: Launcher) -> None:
    done = launcher.run(_BODY, "--ps", "0", "--workers", "1")
    assert int(done.lines("/job:worker/task:0")[0]) >= 8 * 1024
