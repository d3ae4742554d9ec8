"""A directory of checkpoints: what is found in it, what stays, and who may write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from argosy.checkpoint import folder
from argosy.checkpoint.archive import Archive
from argosy.checkpoint.index import Index, SavedOptimizer, SavedParameter
from argosy.checkpoint.listing import listing
from argosy.checkpoint.safetensors import Entry
from argosy.checkpoint.shard_writer import ShardWriter
from argosy.checkpoint.tensor_reader import load
from argosy.errors import CheckpointDamaged, ConfigError


def save(archive: Archive, step: int, value: float | None = None, servers: int = 2) -> str:
    """A checkpoint as servers write it: one parameter, spread over them. What went wrong, if anything did."""
    full = torch.full((4, servers), float(step) if value is None else value)
    flat = full.view(-1)
    parameter = SavedParameter("w", tuple(full.shape), "float32")
    index = Index(step, {}, 0.0, (parameter,), SavedOptimizer("SGD", ({},)), ())
    archive.begin()
    files, errors = [], []
    for server in range(servers):
        writer = ShardWriter(archive.directory, f"shard-{server}-of-{servers}.safetensors")
        start, stop = 4 * server, 4 * server + 4
        entry = Entry(f"param/w[{start}:{stop}]", flat[start:stop])
        writer.write(step, partial(list, [entry]))
        writer.close()
        result = writer.result()
        assert result is not None
        _, file, error = result
        if file is not None:
            files.append(file)
        else:
            errors.append(error)
    archive.publish(index, files, {0: b"state"}, errors)
    while (outcome := archive.poll()) is None:
        pass
    return outcome.error


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    made = Archive(tmp_path / "runs", keep=3)
    yield made
    made.close()


def test_what_was_saved_is_loaded(archive: Archive) -> None:
    save(archive, 5)
    assert load(archive.directory)["w"].tolist() == [[5.0, 5.0]] * 4
    assert load(archive.directory / "step-5")["w"].tolist() == [[5.0, 5.0]] * 4
    assert sorted(os.listdir(archive.directory)) == [".lock", "step-5"]


def test_the_newest_stay(archive: Archive) -> None:
    for step in (9, 10, 20, 30, 100):
        save(archive, step)
    assert [each.step for each in folder.saved(archive.directory)] == [20, 30, 100]
    assert load(archive.directory, step=30)["w"][0, 0] == 30
    with pytest.raises(ConfigError, match="20, 30, 100, got 9"):
        load(archive.directory, step=9)


def test_damaged_ones_of_later_steps_do_not_push_out_the_good_ones(archive: Archive) -> None:
    for step in (1, 7, 8, 9):
        save(archive, step)
    for step in (7, 8, 9):
        (archive.directory / f"step-{step}" / "index.json").unlink()
    save(archive, 2)
    assert load(archive.directory)["w"][0, 0] == 2


@pytest.mark.parametrize("harm", ["cut", "flip", "remove", "index"])
def test_a_damaged_one_is_refused_by_name_and_the_one_before_it_is_used(archive: Archive, harm: str) -> None:
    save(archive, 1)
    save(archive, 2)
    file = archive.directory / "step-2" / "shard-1-of-2.safetensors"
    data = bytearray(file.read_bytes())
    if harm == "cut":
        file.write_bytes(data[:-1])
    elif harm == "flip":
        data[-1] ^= 1
        file.write_bytes(data)
    elif harm == "remove":
        file.unlink()
    else:
        file = archive.directory / "step-2" / "index.json"
        file.write_bytes(b"{}")
    notes: list[str] = []
    found = archive.newest(notes.append)
    assert found is not None
    assert found[1].step == 1
    assert len(notes) == 1
    assert str(file) in notes[0]
    assert load(archive.directory)["w"][0, 0] == 1
    with pytest.raises(CheckpointDamaged, match=file.name):
        load(archive.directory, step=2)
    lines, sound = listing(archive.directory)
    assert not sound
    assert [line.split()[0] for line in lines] == ["step", "1", "2"]
    assert lines[1].endswith("sound")
    assert file.name in lines[2]
    save(archive, 2, 7.0)  # made again, it takes the place of the damaged one
    assert load(archive.directory)["w"][0, 0] == 7


def test_a_second_job_is_refused(archive: Archive) -> None:
    with pytest.raises(ConfigError, match=f"in use by pid {os.getpid()} on .*; wait until it has ended"):
        Archive(archive.directory, keep=3)
    assert folder.is_written_to(archive.directory)


def test_the_lock_goes_with_the_job(tmp_path: Path) -> None:
    for _ in range(2):
        made = Archive(tmp_path, keep=1)
        made.close()
    assert not folder.is_written_to(tmp_path)


def test_what_a_crash_has_left_is_removed(tmp_path: Path) -> None:
    place = folder.workplace(tmp_path, 5)
    place.mkdir()
    (place / "shard-0-of-1.safetensors").write_bytes(b"half")
    (tmp_path / ".leaving-step-4-1").mkdir()
    assert folder.saved(tmp_path) == []
    Archive(tmp_path, keep=1).close()
    assert sorted(os.listdir(tmp_path)) == [".lock"]


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"a place to write to at .*file/runs, got Not a directory"):
        Archive(tmp_path / "file" / "runs", keep=1)


def test_a_full_disk_leaves_the_old_one(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    save(archive, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("argosy.checkpoint.disk.write", full)
        assert "shard-0-of-2.safetensors: No space left on device" in save(archive, 2)
    with monkeypatch.context() as patched:
        patched.setattr("argosy.checkpoint.disk.rename", full)
        assert save(archive, 3) == "No space left on device"
    assert load(archive.directory)["w"][0, 0] == 1
    assert [each.step for each in folder.saved(archive.directory)] == [1]
    assert save(archive, 4) == ""


def test_an_empty_directory_has_nothing_to_load(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"directory: expected a checkpoint in {tmp_path}, got none"):
        load(tmp_path)
    assert listing(tmp_path) == ([f"no checkpoints in {tmp_path}"], True)
    with pytest.raises(ConfigError, match="DIRECTORY: expected a directory of checkpoints"):
        listing(tmp_path / "nowhere")
