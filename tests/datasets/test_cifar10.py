"""CIFAR-10's binary batches: read, refused, and learned from."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from argosy.datasets import cifar10
from argosy.errors import ConfigError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cifar10.py"


def records(*labels: int) -> bytes:
    return b"".join(bytes([label]) + bytes([label * 20]) * 3072 for label in labels)


def write(folder: Path, train: bytes = records(1, 2, 3), test: bytes = records(4)) -> None:
    (folder / "data_batch_1.bin").write_bytes(train)
    (folder / "data_batch_3.bin.gz").write_bytes(gzip.compress(records(9)))
    (folder / "test_batch.bin").write_bytes(test)


def test_batches_are_read_with_and_without_gzip(tmp_path: Path) -> None:
    write(tmp_path)
    pictures = cifar10.load(tmp_path)
    assert pictures.train_labels.tolist() == [1, 2, 3, 9]
    assert pictures.test_labels.tolist() == [4]
    assert pictures.train_images.shape == (4, 3, 32, 32)
    red = (60 / 255 - 0.491) / 0.247
    assert pictures.train_images[2, 0].unique().item() == pytest.approx(red, abs=1e-5)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (b"", "records of 3073 bytes in .*data_batch_1.bin, got 0 bytes"),
        (records(1)[:-1], "records of 3073 bytes"),
        (records(1, 10), "labels from 0 to 9 in .*data_batch_1.bin, got 10"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, train: bytes, message: str) -> None:
    write(tmp_path, train)
    with pytest.raises(ConfigError, match=message):
        cifar10.load(tmp_path)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data_batch_1.bin or data_batch_1.bin.gz in"):
        cifar10.load(tmp_path)
    write(tmp_path)
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(ConfigError, match=r"test_batch.bin or test_batch.bin.gz in"):
        cifar10.load(tmp_path)
    (tmp_path / "test_batch.bin.gz").write_bytes(gzip.compress(records(1))[:-9])
    with pytest.raises(ConfigError, match=r"a readable .*test_batch.bin.gz"):
        cifar10.load(tmp_path)


def test_the_synthetic_set_and_its_batches() -> None:
    pictures = cifar10.load()
    assert pictures.train_labels.bincount().tolist() == [200] * 10
    batches = cifar10.Batches(pictures.train_images, pictures.train_labels, 64)
    drawn = list(batches)
    assert len(drawn) == len(batches) == 31
    assert all(images.shape == (64, 3, 32, 32) for images, _ in drawn)
    plain = cifar10.Batches(pictures.test_images, pictures.test_labels, 500, shift=0)
    ((images, labels),) = list(plain)
    assert torch.equal(images.sum(dim=(1, 2, 3)).sort()[0], pictures.test_images.sum(dim=(1, 2, 3)).sort()[0])
    assert labels.bincount().tolist() == [50] * 10
    with pytest.raises(ConfigError, match="batch: expected a number of pictures from 1 to 500"):
        cifar10.Batches(pictures.test_images, pictures.test_labels, 501)


@pytest.mark.processes
@pytest.mark.slow
def test_the_example_learns_on_two_towers() -> None:
    command = [sys.executable, str(EXAMPLE), "--epochs", "2", "--batch", "64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("After 62 training step(s), accuracy = "), last
    assert float(last.rpartition(" ")[2]) > 0.3
