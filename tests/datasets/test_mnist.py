"""MNIST as tensors: the shipped digits, the whole set where it is at hand, and the loader."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from idx_files import ROOT, assert_names, idx_bytes, packed, write_set

from argosy.datasets import mnist
from argosy.errors import ConfigError

SHIPPED = ROOT / "src" / "argosy" / "datasets" / "digits"
CHECKSUMS = {  # of the unpacked files: packing may differ from one zlib to the next
    "t10k-images-idx3-ubyte.gz": "3f6bd66dee48df299584c67669bceee490faa25f931496bd7473b42106d7daed",
    "t10k-labels-idx1-ubyte.gz": "7b098e5f6a3065807cebeabf36fb1724a8aff19f2673ac08b4923e0e8c715bce",
    "train-images-idx3-ubyte.gz": "2889698e6bc3614913e76901316712919d1998fc2b44512451bfe65bc1e668b1",
    "train-labels-idx1-ubyte.gz": "651e38e2ac0632f5113ec18f1df4977117f953197819034009971a6675a0df78",
}


@pytest.fixture(scope="module")
def digits() -> mnist.Digits:
    return mnist.load()


@pytest.fixture
def full_set() -> Path:
    """The folder of the whole of MNIST, which the repository does not carry."""
    folder = Path(os.environ.get("ARGOSY_TEST_DATA") or ROOT.parent / "shared" / "data" / "mnist")
    if not folder.is_dir():
        pytest.skip(f"the full MNIST set is not at {folder}; name its folder with ARGOSY_TEST_DATA")
    return folder


def test_shipped_digits_have_the_promised_shapes(digits: mnist.Digits) -> None:
    for images, labels, count in (
        (digits.train_images, digits.train_labels, 10_000),
        (digits.test_images, digits.test_labels, 2_000),
    ):
        assert images.shape == (count, 784)
        assert images.dtype == torch.float32
        assert images.is_contiguous()
        assert (images.min().item(), images.max().item()) == (0, 1)
        assert labels.shape == (count,)
        assert labels.dtype == torch.int64


def test_shipped_digits_have_every_class(digits: mnist.Digits) -> None:
    train = [1001, 1127, 991, 1032, 980, 863, 1014, 1070, 944, 978]
    test = [175, 234, 219, 207, 217, 179, 178, 205, 192, 194]
    assert digits.train_labels.bincount().tolist() == train
    assert digits.test_labels.bincount().tolist() == test


@pytest.mark.parametrize("name", CHECKSUMS)
def test_shipped_files_are_the_ones_cut(name: str) -> None:
    content = (SHIPPED / name).read_bytes()
    assert content[4:8] == bytes(4), "no timestamp"
    assert hashlib.sha256(gzip.decompress(content)).hexdigest() == CHECKSUMS[name]


def test_the_notice_says_whose_digits_they_are_and_what_was_changed() -> None:
    notice = " ".join((SHIPPED / "NOTICE").read_text().split())
    for part in (
        "Yann LeCun",
        "Corinna Cortes",
        "Christopher J.C. Burges",
        "MNIST",
        "CC BY-SA 3.0",
        "https://creativecommons.org/licenses/by-sa/3.0/",
        "cut to its first 10,000 images and labels, the test set to its first 2,000",
    ):
        assert part in notice


def test_the_folder_ships_nothing_else_and_stays_small() -> None:
    assert {path.name for path in SHIPPED.iterdir()} == {*CHECKSUMS, "NOTICE"}
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 2_000_000


def test_plain_and_packed_files_give_the_same_tensors(tmp_path: Path) -> None:
    plain = write_set(tmp_path / "plain")
    shutil.copytree(tmp_path / "plain", tmp_path / "packed")
    for name in plain:
        path = tmp_path / "packed" / name
        path.with_name(f"{name}.gz").write_bytes(packed(path.read_bytes()))
        path.unlink()
    ours, theirs = mnist.load(tmp_path / "plain"), mnist.load(tmp_path / "packed")
    assert ours.train_images.equal(theirs.train_images)
    assert ours.test_labels.equal(theirs.test_labels)


def test_pixels_and_labels_keep_their_place(tmp_path: Path) -> None:
    write_set(tmp_path)
    digits = mnist.load(tmp_path)
    assert digits.train_images.shape == (3, 784)
    assert digits.train_images[0, :256].mul(255).round().tolist() == list(range(256))
    assert digits.train_images[1, 0] == pytest.approx(784 % 256 / 255)
    assert digits.train_labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("part", ["train", "t10k"])
def test_images_and_labels_must_be_as_many(tmp_path: Path, part: str) -> None:
    labels = write_set(tmp_path, train=3, test=3)[f"{part}-labels-idx1-ubyte"]
    labels.write_bytes(idx_bytes((2,), bytes(2)))
    with pytest.raises(ConfigError) as caught:
        mnist.load(tmp_path)
    assert_names(caught, "3 labels", labels, f"{part}-images-idx3-ubyte", "got 2")


def test_a_label_above_nine_is_refused_with_its_position(tmp_path: Path) -> None:
    labels = write_set(tmp_path)["train-labels-idx1-ubyte"]
    labels.write_bytes(idx_bytes((3,), b"\x01\x09\x0a"))
    with pytest.raises(ConfigError) as caught:
        mnist.load(tmp_path)
    assert_names(caught, labels, "0 to 9", "10 at position 2")


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    images = write_set(tmp_path)["t10k-images-idx3-ubyte"]
    images.write_bytes(idx_bytes((2, 32, 32), bytes(2 * 32 * 32)))
    with pytest.raises(ConfigError) as caught:
        mnist.load(tmp_path)
    assert_names(caught, images, "N x 28 x 28", "2 x 32 x 32")


def test_the_shipped_digits_begin_the_full_set(digits: mnist.Digits, full_set: Path) -> None:
    full = mnist.load(full_set)
    assert (len(full.train_labels), len(full.test_labels)) == (60_000, 10_000)
    assert full.train_images[:10_000].equal(digits.train_images)
    assert full.train_labels[:10_000].equal(digits.train_labels)
    assert full.test_images[:2_000].equal(digits.test_images)
    assert full.test_labels[:2_000].equal(digits.test_labels)


def test_the_script_cuts_the_shipped_digits_again(full_set: Path, tmp_path: Path) -> None:
    script = ROOT / "scripts" / "cut_digits.py"
    command = [sys.executable, str(script), "--data", str(full_set), "--to", str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)
    for name in CHECKSUMS:
        ours, again = (gzip.decompress((folder / name).read_bytes()) for folder in (SHIPPED, tmp_path))
        assert ours == again


def numbered(count: int, size: int, seed: int = 0) -> mnist.DigitBatches:
    """A loader whose image i is i, and whose label i is i."""
    labels = torch.arange(count)
    generator = torch.Generator().manual_seed(seed)
    return mnist.batches(labels.float().unsqueeze(1), labels, size, generator)


def order(loader: mnist.DigitBatches) -> list[int]:
    return [label for _, labels in loader for label in labels.tolist()]


def test_an_epoch_has_each_example_once_beside_its_label() -> None:
    loader = numbered(12, 4)
    found = list(loader)
    assert len(found) == len(loader) == 3
    assert all(images.squeeze(1).equal(labels.float()) for images, labels in found)
    assert sorted(label for _, labels in found for label in labels.tolist()) == list(range(12))


def test_each_epoch_has_another_order_and_a_seed_repeats_them_all() -> None:
    loader, again = numbered(100, 10), numbered(100, 10)
    epochs = [order(loader), order(loader)]
    assert epochs[0] != epochs[1]
    assert epochs == [order(again), order(again)]
    assert order(numbered(100, 10, seed=1)) != epochs[0]


def test_an_incomplete_batch_is_left_out() -> None:
    loader = numbered(10, 4)
    assert [len(labels) for _, labels in loader] == [4, 4]
    assert len(loader) == 2


def test_without_a_generator_torch_decides() -> None:
    loader = mnist.batches(torch.zeros(50, 1), torch.arange(50), 50)
    torch.manual_seed(3)
    first = order(loader)
    torch.manual_seed(3)
    assert order(loader) == first


@pytest.mark.parametrize("size", [0, -1, 11])
def test_a_batch_size_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=rf"batch: expected .* from 1 to 10, got {size}"):
        numbered(10, size)
