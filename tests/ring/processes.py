"""Ranks in processes of their own, for the tests of this folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def ended(started: Sequence[subprocess.Popen[str]], seconds: float) -> list[tuple[int, str]]:
    """Exit code and output of every process; each has so many seconds, and none is left."""
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


def ranks(program: Path, size: int, folder: Path, what: str) -> list[tuple[int, str]]:
    """Run a program as that many ranks, which meet in a file of the folder: exit codes and outputs."""
    started = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(size), str(folder / "store"), what],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    return ended(started, 90)
