"""MNIST as tensors in memory: the digits that ship with the package, or the whole set from a folder.

A training program calls `load` once and `batches` for its loader. The tensors belong to the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

from argosy.datasets import idx
from argosy.errors import ConfigError

_SIDE = 28
_CLASSES = 10


@dataclass(frozen=True)
class Digits:
    """Images as float32 rows of 784 from 0 to 1, labels as int64 from 0 to 9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load(directory: Path | None = None) -> Digits:
    """Read the four MNIST files in `directory`; None: the 10,000 and 2,000 digits that ship with Argosy.

    Raises ConfigError, naming the file, for one that is missing or damaged.
    """
    if directory is None:
        with resources.as_file(resources.files("argosy.datasets") / "digits") as shipped:
            return load(shipped)
    files = idx.require_files(directory)
    return Digits(
        *_read_pair(files.train_images, files.train_labels),
        *_read_pair(files.test_images, files.test_labels),
    )


def _read_pair(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    shape, pixels = idx.read(images, (None, _SIDE, _SIDE))
    (count,), classes = idx.read(labels, (None,))
    if count != shape[0]:
        expected = f"{shape[0]} labels in {labels}, as many as images in {images.name}"
        raise ConfigError("data", expected, count, "take both files from the same set")
    worst = max(classes)
    if worst >= _CLASSES:
        expected = f"labels from 0 to {_CLASSES - 1} in {labels}"
        raise ConfigError(
            "data", expected, f"{worst} at position {classes.index(worst)}", "fetch this file again"
        )
    # Floats from the start: a batch is then one gather of rows, without a conversion in every step.
    rows = torch.frombuffer(pixels, dtype=torch.uint8).view(-1, _SIDE * _SIDE).float().div_(255)
    return rows, torch.frombuffer(classes, dtype=torch.uint8).long()


@dataclass(frozen=True, eq=False)
class DigitBatches:
    """Full batches of (images, labels), in a new random order each time it is iterated; see `batches`."""

    images: Tensor
    labels: Tensor
    size: int
    generator: torch.Generator | None = None

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return len(self.labels) // self.size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        # The incomplete batch at the end is left out: every gradient then weighs the same in an average.
        order = torch.randperm(len(self.labels), generator=self.generator)[: len(self) * self.size]
        for rows in order.view(-1, self.size):
            yield self.images.index_select(0, rows), self.labels.index_select(0, rows)


Batches = DigitBatches  # as programs have imported it


def batches(
    images: Tensor, labels: Tensor, size: int, generator: torch.Generator | None = None
) -> DigitBatches:
    """A loader for data in memory: iterate it again for the next epoch, which has another order.

    The order comes from `generator` (None: torch's own), which each replica seeds differently.
    """
    if not 1 <= size <= len(labels):
        raise ConfigError("batch", f"a number of examples from 1 to {len(labels)}", size)
    return DigitBatches(images, labels, size, generator)
