"""Ranks in processes of their own, for the tests of this folder."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def ended(started: Sequence[subprocess.Popen[str]], seconds: float) -> list[tuple[int, str]]:
    """Exit code and output of every process; each has so many seconds, and none is left."""
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]
