"""Small IDX files for the tests of this folder, and what every complaint about one must have."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from argosy.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def idx_bytes(shape: Sequence[int], data: bytes, kind: int = 8) -> bytes:
    """An IDX file, well formed or not: `shape` need not fit `data`."""
    return struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape) + data


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def write_set(folder: Path, train: int = 3, test: int = 2) -> dict[str, Path]:
    """Four good files with so many digits; the paths by their original names."""
    folder.mkdir(exist_ok=True)
    contents = {}
    for part, count in (("train", train), ("t10k", test)):
        pixels = bytes(position % 256 for position in range(count * 784))
        contents[f"{part}-images-idx3-ubyte"] = idx_bytes((count, 28, 28), pixels)
        contents[f"{part}-labels-idx1-ubyte"] = idx_bytes((count,), bytes(n % 10 for n in range(count)))
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in contents}


def assert_names(caught: pytest.ExceptionInfo[ConfigError], *parts: object) -> None:
    """The complaint is one line about `data` that has a remedy and every one of `parts`."""
    message = str(caught.value)
    assert caught.value.field == "data"
    assert caught.value.remedy
    assert "\n" not in message
    for part in ("expected", "got", *parts):
        assert str(part) in message, message
