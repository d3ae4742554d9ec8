"""CIFAR-10 as tensors in memory, from the dataset's binary batches; or a small set of our own making.

The binary batches only: the dataset's Python ones are pickles, and reading a pickle runs what it says.
A training program calls `load` once and `batches` for its loader. The tensors belong to the caller.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from argosy.errors import ConfigError

CLASSES = 10
_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_RECORD = 1 + _PIXELS
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = "test_batch.bin"
# The mean and spread of the dataset's colours.
_MEAN, _SPREAD = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)


@dataclass(frozen=True)
class Pictures:
    """Images as float32 of 3 x 32 x 32, colours around 0 with a spread of 1; labels as int64 from 0 to 9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load(directory: Path | None = None) -> Pictures:
    """Read `data_batch_1.bin` to `5` (those that are there) and `test_batch.bin`, with or without `.gz`.

    None: a small synthetic set. Raises ConfigError, naming the file, for one that is missing or damaged.
    """
    if directory is None:
        return Pictures(
            *_parse(_synthetic(2000, seed=1), "synthetic"), *_parse(_synthetic(500, 2), "synthetic")
        )
    train = [found for name in _TRAIN if (found := _find(directory, name)) is not None]
    test = _find(directory, _TEST)
    if not train or test is None:
        missing = _TRAIN[0] if not train else _TEST
        raise ConfigError(
            "data", f"{missing} or {missing}.gz in {directory}", "none", "fetch CIFAR-10's binary version"
        )
    pairs = [_parse(_read(path), str(path)) for path in train]
    images, labels = (torch.cat([pair[which] for pair in pairs]) for which in (0, 1))
    return Pictures(images, labels, *_parse(_read(test), str(test)))


def _find(directory: Path, name: str) -> Path | None:
    return next((path for path in (directory / name, directory / f"{name}.gz") if path.is_file()), None)


def _read(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError("data", f"a readable {path}", str(error), "fetch this file again") from None


def _parse(content: bytes, name: str) -> tuple[Tensor, Tensor]:
    if not content or len(content) % _RECORD:
        raise ConfigError(
            "data", f"records of {_RECORD} bytes in {name}", f"{len(content)} bytes", "fetch this file again"
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, _RECORD)
    labels = records[:, 0].long()
    if int(labels.max()) >= CLASSES:
        raise ConfigError("data", f"labels from 0 to {CLASSES - 1} in {name}", int(labels.max()))
    mean, spread = (torch.tensor(values).view(3, 1, 1) for values in (_MEAN, _SPREAD))
    images = records[:, 1:].reshape(-1, 3, _SIDE, _SIDE).float().div_(255)
    return images.sub_(mean).div_(spread), labels


def _synthetic(count: int, seed: int) -> bytes:
    """Records in the dataset's format: stripes, whose direction and colour tell the class, under noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    ramp = torch.arange(_SIDE) * 0.8
    down, right = ramp.view(-1, 1), ramp.view(1, -1)
    angle = labels.float().mul(torch.pi / 5).view(-1, 1, 1)
    phase = 6.28 * torch.rand(count, 1, 1, generator=generator)
    stripes = torch.sin(down * angle.cos() + right * angle.sin() + phase)
    colours = 0.5 + 0.5 * torch.stack([(labels % 2), (labels % 3) / 2, (labels % 5) / 4], dim=1)
    pixels = 128 + 70 * stripes.unsqueeze(1) * colours.view(-1, 3, 1, 1)
    pixels += 40 * torch.randn(count, 3, _SIDE, _SIDE, generator=generator)
    records = torch.cat([labels.view(-1, 1), pixels.clamp(0, 255).view(count, _PIXELS)], dim=1)
    return bytes(records.to(torch.uint8).view(-1).tolist())


class Batches:
    """Batches in a new random order each time they are iterated, pictures shifted and mirrored by chance."""

    def __init__(self, images: Tensor, labels: Tensor, size: int, shift: int = 3) -> None:
        if not 0 < size <= len(labels):
            raise ConfigError("batch", f"a number of pictures from 1 to {len(labels)}", size)
        self._images, self._labels, self._size, self._shift = images, labels, size, shift

    def __len__(self) -> int:
        return len(self._labels) // self._size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._labels))
        for rows in order[: len(self) * self._size].view(-1, self._size):
            yield self._vary(self._images[rows]), self._labels[rows]

    def _vary(self, images: Tensor) -> Tensor:
        """One shift for the batch, and a mirror for each picture: cheap, and different every time."""
        if not self._shift:
            return images
        padded = torch.nn.functional.pad(images, [self._shift] * 4)
        down, right = torch.randint(0, 2 * self._shift + 1, (2,)).tolist()
        images = padded[:, :, down : down + _SIDE, right : right + _SIDE]
        mirrored = torch.rand(len(images), 1, 1, 1) < 0.5
        return torch.where(mirrored, images.flip(3), images)
