"""A disk of one megabyte, for tests of what happens when it is full. It needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def fill(disk: Path) -> None:
    """Leave no room for another byte."""
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of its own."""
    if os.getuid() != 0:
        pytest.skip("a disk of its own needs root")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "argosy-test", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a disk: {mounted.stderr.decode(errors='replace').strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=20)
