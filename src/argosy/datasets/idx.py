"""The IDX files of MNIST, plain or gzip: found in a folder, checked, and read into bytes. Without torch.

The command line calls `require_files` before it starts a task; `mnist` calls `read`. What a file claims is
checked against its size before memory is taken, and whatever is wrong is a ConfigError that names the file.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

from argosy.errors import ConfigError

_UNSIGNED_BYTE = 0x08
_GZIP_MAGIC = b"\x1f\x8b"
# Deflate packs at most 258 bytes into 2 bits: no gzip file holds more than this many times its own size.
_GZIP_MOST = 1032
_CHUNK = 1 << 20
_FIND_REMEDY = "name the folder of the four MNIST files, or name none for the digits that ship with Argosy"
_READ_REMEDY = "fetch this file again"
_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class MnistFiles:
    """Where the four files of one set of digits are."""

    train_images: Path
    train_labels: Path
    test_images: Path
    test_labels: Path


def require_files(directory: Path) -> MnistFiles:
    """Find the four files in `directory`, plain or `.gz`, `-idx3-ubyte` or `.idx3-ubyte`; none is opened.

    Raises ConfigError, naming the folder and every file that is missing.
    """
    try:
        present = {path.name for path in directory.iterdir() if path.is_file()}
    except OSError as error:
        raise ConfigError("data", f"a folder at {directory}", _reason(error), _FIND_REMEDY) from None
    found = {name: spelling for name in _NAMES for spelling in _spellings(name) if spelling in present}
    missing = [name for name in _NAMES if name not in found]
    if missing:
        expected = f"{', '.join(missing)} (or .gz) in {directory}"
        raise ConfigError("data", expected, "no such file", _FIND_REMEDY)
    return MnistFiles(*(directory / found[name] for name in _NAMES))


def _spellings(name: str) -> Sequence[str]:
    """The names in use for one file; the last one present is taken, so the original's plain name wins."""
    dotted = name.replace("-idx", ".idx")
    return f"{dotted}.gz", dotted, f"{name}.gz", name


def read(path: Path, shape: Sequence[int | None]) -> tuple[Shape, bytearray]:
    """The shape and the bytes of the IDX file at `path`, which must have `shape` (None: any number above 0).

    Raises ConfigError for a file that cannot be read, is damaged, or has another shape.
    """
    try:
        with path.open("rb") as raw:
            size = path.stat().st_size
            # By content, not by name: browsers unpack a download and leave the name as it was.
            packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=raw) as stream:
                    return _read_stream(path, stream, shape, _GZIP_MOST * size)
            return _read_stream(path, raw, shape, size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _damaged(path, "a whole gzip file", _reason(error)) from None
    except OSError as error:
        raise ConfigError("data", f"a file to read at {path}", _reason(error), _FIND_REMEDY) from None


def _read_stream(
    path: Path, stream: BufferedIOBase, wanted: Sequence[int | None], most: int
) -> tuple[Shape, bytearray]:
    """Read header and data of a stream that cannot hold more than `most` bytes."""
    shape = _read_header(path, stream, wanted)
    count = math.prod(shape)
    said = f"{count} bytes of data, as its header says"
    if count > most:
        raise _damaged(path, said, f"a file that holds {most} at most")
    data = bytearray()
    while len(data) < count and (chunk := stream.read(min(_CHUNK, count - len(data)))):
        data += chunk
    if len(data) < count:
        raise _damaged(path, said, f"{len(data)}")
    if stream.read(1):
        raise _damaged(path, said, "more")
    return shape, data


def _read_header(path: Path, stream: BufferedIOBase, wanted: Sequence[int | None]) -> Shape:
    rank = len(wanted)
    magic = bytes((0, 0, _UNSIGNED_BYTE, rank))
    header = stream.read(4 + 4 * rank)
    if header[:4] != magic:
        kind = f"{magic.hex(' ')} at the start (IDX, unsigned bytes, dimensions: {rank})"
        raise _damaged(path, kind, header[:4].hex(" ") or "an empty file")
    if len(header) < 4 + 4 * rank:
        raise _damaged(path, f"a header of {4 + 4 * rank} bytes", f"{len(header)}")
    shape = struct.unpack(f">{rank}I", header[4:])
    if any(got != want if want is not None else got == 0 for got, want in zip(shape, wanted, strict=True)):
        expected = " x ".join("N" if want is None else str(want) for want in wanted)
        raise _damaged(path, f"a shape of {expected}, N at least 1", " x ".join(map(str, shape)))
    return shape


def _damaged(path: Path, expected: str, got: str) -> ConfigError:
    return ConfigError("data", f"{path} to have {expected}", got, _READ_REMEDY)


def _reason(error: Exception) -> str:
    """What the system says, without the path, which the message has already; on one line."""
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return " ".join(text.split())
