"""Files of tensors and their index: there and back, and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

from argosy.checkpoint import index as indexes
from argosy.checkpoint.index import Index, SavedOptimizer, SavedParameter, split_name
from argosy.checkpoint.safetensors import Entry, Reader, write
from argosy.checkpoint.tensor_reader import Checkpoint, load
from argosy.errors import CheckpointDamaged
from argosy.protocol.frames import ITEMSIZE
from argosy.protocol.saving import ShardFile
from argosy.wire.tensor_bytes import torch_dtype


def test_every_dtype_and_shape_comes_back(tmp_path: Path) -> None:
    shapes: list[tuple[int, ...]] = [(), (0,), (3,), (2, 5), (1, 0, 4)]
    tensors = {
        f"{name}/{shape}": torch.ones(shape, dtype=torch_dtype(name)) for name in ITEMSIZE for shape in shapes
    }
    size, checksum = write(tmp_path / "a", [Entry(name, tensor) for name, tensor in tensors.items()])
    assert (tmp_path / "a").stat().st_size == size
    assert len(checksum) == 64
    reader = Reader(tmp_path / "a")
    assert reader.places.keys() == tensors.keys()
    for name, tensor in tensors.items():
        read = reader.read(name)
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor)


def test_a_file_is_as_the_format_says(tmp_path: Path) -> None:
    write(tmp_path / "a", [Entry("half", torch.ones(3, dtype=torch.bfloat16)), Entry("full", torch.ones(2))])
    data = (tmp_path / "a").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert header == {
        "full": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "half": {"dtype": "BF16", "shape": [3], "data_offsets": [8, 14]},
    }
    assert len(data) == 8 + length + 14


def test_a_part_of_a_tensor_is_read(tmp_path: Path) -> None:
    write(tmp_path / "a", [Entry("x", torch.arange(12.0).view(3, 4)), Entry("y", torch.zeros(1))])
    assert Reader(tmp_path / "a").read("x", 5, 8).tolist() == [5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"{{}}",
        struct.pack("<Q", 54) + b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        struct.pack("<Q", 60)
        + b'{"x":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}'.ljust(60)
        + b"12345678",
        struct.pack("<Q", 60)
        + b'{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}'.ljust(60)
        + b"12345678",
    ],
)
def test_what_is_no_such_file_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(CheckpointDamaged, match=f"damaged checkpoint: {tmp_path / 'a'}"):
        Reader(tmp_path / "a")


def an_index(step: int = 7) -> Index:
    return Index(
        step=step,
        mode={"type": "sync"},
        time=1.5,
        parameters=(SavedParameter("a.weight", (2, 3), "float32", 1),),
        optimizer=SavedOptimizer("Adam", ({"lr": 0.1, "betas": (0.9, 0.99)},)),
        shards=(ShardFile("shard-0-of-1.safetensors", 12, "ab"),),
        replicas={0: b"\x00\xff", 3: b""},
        tied={"b.weight": "a.weight"},
    )


def test_an_index_comes_back(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_bytes(indexes.encode(an_index()))
    found = indexes.read(tmp_path)
    assert found.replicas == {0: b"\x00\xff", 3: b""}
    assert found.parameters == an_index().parameters
    assert found.optimizer.groups == ({"lr": 0.1, "betas": [0.9, 0.99]},)


def test_an_index_with_any_other_byte_is_refused(tmp_path: Path) -> None:
    data = indexes.encode(an_index())
    for position in range(len(data) - 1):
        damaged = bytearray(data)
        damaged[position] ^= 1
        (tmp_path / "index.json").write_bytes(damaged)
        with pytest.raises(CheckpointDamaged, match=r"index\.json"):
            indexes.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("param/a.weight", ("param", "a.weight", None)),
        ("slot/exp_avg/a.weight[3:17]", ("slot/exp_avg", "a.weight", (3, 17))),
        ("step/a", ("step", "a", None)),
        ("buffer/a/b", ("buffer", "a/b", None)),
    ],
)
def test_names_in_a_file(name: str, parts: tuple[str, str, tuple[int, int] | None]) -> None:
    assert split_name(name) == parts


def test_a_parameter_may_be_called_as_a_part_is() -> None:
    assert split_name("param/a[3:17]", {"a[3:17]"}) == ("param", "a[3:17]", None)


# --- spread over files ------------------------------------------------------------------------------------
def spread(folder: Path, parts: list[list[tuple[int, int]]]) -> torch.Tensor:
    """A checkpoint of one parameter of 4 x 3 elements, these stretches of it in each file; all of it."""
    whole = torch.arange(12.0).view(4, 3)
    files = []
    for number, stretches in enumerate(parts):
        entries = [Entry(f"param/w[{start}:{stop}]", whole.view(-1)[start:stop]) for start, stop in stretches]
        files.append(ShardFile(f"shard-{number}", *write(folder / f"shard-{number}", entries)))
    parameter = SavedParameter("w", (4, 3), "float32")
    found = Index(1, {}, 0.0, (parameter,), SavedOptimizer("SGD", ({},)), tuple(files))
    (folder / indexes.FILE).write_bytes(indexes.encode(found))
    return whole


@pytest.mark.parametrize(
    "parts",
    [[[(0, 5)], [(5, 12)]], [[(5, 12)], [(0, 5)]], [[(8, 12), (0, 3)], [(3, 8)]]],
    ids=["in order", "the end first", "the middle last"],
)
def test_a_tensor_that_is_spread_over_files_is_put_together(
    tmp_path: Path, parts: list[list[tuple[int, int]]]
) -> None:
    whole = spread(tmp_path, parts)
    assert torch.equal(load(tmp_path)["w"], whole)
    checkpoint = Checkpoint(tmp_path)
    for start in range(12):
        for stop in range(start + 1, 13):
            assert torch.equal(checkpoint.elements("param", "w", start, stop), whole.view(-1)[start:stop])


@pytest.mark.parametrize(
    "parts", [[[(0, 5)], [(6, 12)]], [[(0, 5)], [(5, 7)]], [[(1, 3)], [(3, 12)]]], ids=str
)
def test_a_tensor_of_which_a_part_is_missing_is_refused(
    tmp_path: Path, parts: list[list[tuple[int, int]]]
) -> None:
    spread(tmp_path, parts)
    with pytest.raises(CheckpointDamaged, match=r"param of w: elements .* are missing"):
        load(tmp_path)


def test_what_was_a_constant_at_first_is_loaded_as_it_was_trained(tmp_path: Path) -> None:
    entries = [Entry("param/w", torch.ones(2)), Entry("buffer/w", torch.zeros(2))]
    file = ShardFile("shard-0", *write(tmp_path / "shard-0", entries))
    parameter = SavedParameter("w", (2,), "float32")
    found = Index(1, {}, 0.0, (parameter,), SavedOptimizer("SGD", ({},)), (file,), buffers=("w",))
    (tmp_path / indexes.FILE).write_bytes(indexes.encode(found))
    assert load(tmp_path)["w"].tolist() == [1.0, 1.0]
