"""The IDX reader: what it takes, and that it refuses everything else with the file's name."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from idx_files import assert_names, idx_bytes, packed, write_set

from argosy.datasets import idx
from argosy.errors import ConfigError

TINY = idx_bytes((2, 2, 3), bytes(range(12)))
TINY_SHAPE = (None, 2, 3)
NAMES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]
shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file to write again and again."""
    return tmp_path_factory.mktemp("idx") / "file-idx"


def attempt(path: Path, shape: Sequence[int | None]) -> tuple[idx.Shape, bytearray] | ConfigError:
    """What the reader says about a file, good or bad; any other exception is a bug."""
    try:
        return idx.read(path, shape)
    except ConfigError as error:
        return error


@settings(deadline=None)
@given(shape=shapes, gzipped=st.booleans(), draw=st.data())
def test_what_is_written_is_read(scratch: Path, shape: list[int], gzipped: bool, draw: st.DataObject) -> None:
    count = math.prod(shape)
    data = draw.draw(st.binary(min_size=count, max_size=count))
    content = idx_bytes(shape, data)
    scratch.write_bytes(packed(content) if gzipped else content)
    assert idx.read(scratch, [None, *shape[1:]]) == (tuple(shape), bytearray(data))


@settings(deadline=None)
@given(content=st.binary(max_size=64))
def test_any_bytes_give_data_or_a_complaint(scratch: Path, content: bytes) -> None:
    scratch.write_bytes(content)
    outcome = attempt(scratch, (None,))
    if isinstance(outcome, ConfigError):
        assert str(scratch) in str(outcome)
    else:
        assert outcome[0] == (len(outcome[1]),)


def test_data_longer_than_one_chunk_is_read_whole(scratch: Path) -> None:
    data = os.urandom(3 * (1 << 20) + 5)
    for content in (idx_bytes((len(data),), data), packed(idx_bytes((len(data),), data))):
        scratch.write_bytes(content)
        assert idx.read(scratch, (None,)) == ((len(data),), bytearray(data))


@pytest.mark.parametrize("content", [TINY, packed(TINY)], ids=["plain", "gzip"])
def test_a_file_cut_anywhere_is_refused(scratch: Path, content: bytes) -> None:
    for length in range(len(content)):
        scratch.write_bytes(content[:length])
        with pytest.raises(ConfigError) as caught:
            idx.read(scratch, TINY_SHAPE)
        assert_names(caught, scratch)


def test_a_header_changed_anywhere_is_refused(scratch: Path) -> None:
    for position in range(16):
        for value in set(range(256)) - {TINY[position]}:
            scratch.write_bytes(TINY[:position] + bytes((value,)) + TINY[position + 1 :])
            with pytest.raises(ConfigError) as caught:
                idx.read(scratch, TINY_SHAPE)
            assert_names(caught, scratch)


def test_a_gzip_file_changed_anywhere_is_refused_or_harmless(scratch: Path) -> None:
    content = packed(TINY)
    for position in range(len(content)):
        for bit in range(8):
            scratch.write_bytes(
                content[:position] + bytes((content[position] ^ 1 << bit,)) + content[position + 1 :]
            )
            outcome = attempt(scratch, TINY_SHAPE)
            if isinstance(outcome, ConfigError):
                assert str(scratch) in str(outcome)
            else:
                assert outcome == ((2, 2, 3), bytearray(TINY[16:]))


@pytest.mark.parametrize(
    ("content", "expected", "got"),
    [
        (b"", "00 00 08 03 at the start", "an empty file"),
        (b"\0", "00 00 08 03 at the start", "got 00"),
        (b"<html>not found</html>", "00 00 08 03 at the start", "3c 68 74 6d"),
        (idx_bytes((2, 2, 3), bytes(48), kind=0x0D), "unsigned bytes", "00 00 0d 03"),
        (idx_bytes((12,), bytes(12)), "dimensions: 3", "00 00 08 01"),
        (TINY[:11], "a header of 16 bytes", "got 11"),
        (idx_bytes((2, 3, 2), bytes(12)), "a shape of N x 2 x 3", "2 x 3 x 2"),
        (idx_bytes((0, 2, 3), b""), "N at least 1", "0 x 2 x 3"),
        (TINY[:-1], "12 bytes of data", "got 11"),
        (TINY + b"\0", "12 bytes of data", "got more"),
        (packed(TINY)[:-9], "a whole gzip file", "ended before"),
        (packed(TINY)[:-8] + bytes(8), "a whole gzip file", "CRC"),
        (packed(TINY) + b"tail", "a whole gzip file", "Not a gzipped file"),
        (packed(TINY + b"\0"), "12 bytes of data", "got more"),
        (packed(TINY[:-1]), "12 bytes of data", "got 11"),
        (packed(b""), "00 00 08 03 at the start", "an empty file"),
        (b"\x1f\x8b\x08", "a whole gzip file", "ended before"),
    ],
)
def test_a_damaged_file_is_named_with_what_came(
    tmp_path: Path, content: bytes, expected: str, got: str
) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        idx.read(path, TINY_SHAPE)
    assert_names(caught, path, expected, got, "fetch this file again")


@pytest.mark.parametrize("pack", [bytes, packed], ids=["plain", "gzip"])
@pytest.mark.parametrize("count", [2**32 - 1, 50_000_000, 1_000])
def test_an_absurd_size_costs_no_memory(tmp_path: Path, pack: type[bytes], count: int) -> None:
    path = tmp_path / "images"
    path.write_bytes(pack(idx_bytes((count, 28, 28), bytes(784))))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError) as caught:
            idx.read(path, (None, 28, 28))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert_names(caught, path, f"{count * 784} bytes of data")


def test_content_decides_what_is_gzip_not_the_name(tmp_path: Path) -> None:
    for name, content in (("unpacked.gz", TINY), ("packed", packed(TINY))):
        (tmp_path / name).write_bytes(content)
        assert idx.read(tmp_path / name, TINY_SHAPE)[0] == (2, 2, 3)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    for path, got in ((tmp_path / "gone", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError) as caught:
            idx.read(path, (None,))
        assert_names(caught, path, got)


def test_the_four_files_are_found(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    assert idx.require_files(tmp_path) == idx.MnistFiles(*(paths[name] for name in NAMES))


@pytest.mark.parametrize("spelling", ["{}.gz", "{}"])
@pytest.mark.parametrize("dotted", [False, True])
def test_every_spelling_is_found(tmp_path: Path, spelling: str, dotted: bool) -> None:
    names = [spelling.format(name.replace("-idx", ".idx") if dotted else name) for name in NAMES]
    for name in names:
        (tmp_path / name).touch()
    assert idx.require_files(tmp_path) == idx.MnistFiles(*(tmp_path / name for name in names))


def test_the_plain_original_is_preferred(tmp_path: Path) -> None:
    paths = write_set(tmp_path)
    for name in NAMES:
        (tmp_path / f"{name}.gz").touch()
        (tmp_path / name.replace("-idx", ".idx")).touch()
    assert idx.require_files(tmp_path).train_images == paths[NAMES[0]]


@pytest.mark.parametrize("missing", NAMES)
def test_a_missing_file_is_named_with_its_folder(tmp_path: Path, missing: str) -> None:
    write_set(tmp_path)[missing].unlink()
    (tmp_path / missing).mkdir()  # a folder of that name is not the file
    with pytest.raises(ConfigError) as caught:
        idx.require_files(tmp_path)
    assert_names(caught, missing, tmp_path, "no such file", "digits that ship")
    assert not any(name in str(caught.value) for name in NAMES if name != missing)


def test_all_missing_files_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        idx.require_files(tmp_path)
    assert_names(caught, *NAMES, tmp_path)


@pytest.mark.parametrize(
    ("name", "got"), [("gone", "No such file"), ("file", "Not a directory"), ("x" * 300, "too long")]
)
def test_what_is_no_folder_is_named(tmp_path: Path, name: str, got: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError) as caught:
        idx.require_files(tmp_path / name)
    assert_names(caught, tmp_path / name, got)


def test_the_reader_does_without_torch() -> None:
    program = "import argosy.datasets.idx, sys; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
