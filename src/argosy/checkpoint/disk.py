"""What saving does to a disk: every system call that changes something, in one place.

Tests put a fault into each of them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_SLICE = 8 * 2**20


def create(path: Path) -> int:
    """A new file, open for writing; one that is there makes way."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)


def write(descriptor: int, data: Any) -> None:
    """All of it: the system may take less at a time."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view[:_SLICE]) :]


def sync(descriptor: int) -> None:
    """Wait until it is on the disk."""
    os.fsync(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """At once, or not at all."""
    os.rename(source, target)


def make_folder(path: Path) -> None:
    """With its parents; it may be there."""
    path.mkdir(parents=True, exist_ok=True)


def remove_file(path: Path) -> None:
    """It may be gone already."""
    path.unlink(missing_ok=True)


def remove_folder(path: Path) -> None:
    """With the files in it; it may be gone already."""
    if path.is_dir():
        for inside in path.iterdir():
            remove_file(inside)
        path.rmdir()


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_file(path: Path, parts: Iterable[Any]) -> None:
    """A file of these parts, on the disk when this returns."""
    descriptor = create(path)
    try:
        for part in parts:
            write(descriptor, part)
        sync(descriptor)
    finally:
        os.close(descriptor)
