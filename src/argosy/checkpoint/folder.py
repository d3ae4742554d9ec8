"""A directory of checkpoints: `step-100/`, `step-200/`, ... each whole, because it gets its name last."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from argosy.checkpoint import disk
from argosy.checkpoint.index import FILE, Index, encode, read
from argosy.errors import CheckpointDamaged, ConfigError

LOCK = ".lock"
_STEP = re.compile(r"step-(\d+)\Z")
# Names that begin so are being written, or being removed: no checkpoint, and nobody's after a crash.
_SAVING = ".saving-"
_LEAVING = ".leaving-"


@dataclass(frozen=True, order=True)
class Saved:
    """A checkpoint that has its name."""

    step: int
    path: Path


def saved(directory: Path) -> list[Saved]:
    """The checkpoints in a directory, the oldest first; whether they are sound is another question."""
    if not directory.is_dir():
        return []
    found = ((_STEP.match(path.name), path) for path in directory.iterdir())
    return sorted(Saved(int(match[1]), path) for match, path in found if match and path.is_dir())


def check(path: Path) -> Index:
    """Read all of a checkpoint; raises CheckpointDamaged, naming what is wrong with which file."""
    index = read(path)
    for shard in index.shards:
        file = path / shard.file
        try:
            size = file.stat().st_size
            if size != shard.bytes:
                raise CheckpointDamaged(file, f"expected {shard.bytes} bytes, got {size}")
            if disk.sha256(file) != shard.sha256:
                raise CheckpointDamaged(file, "its checksum is wrong")
        except OSError as error:
            raise CheckpointDamaged(file, error.strerror or "it cannot be read") from None
    return index


def newest(directory: Path, tell: Callable[[str], None]) -> tuple[Path, Index] | None:
    """The newest sound checkpoint; `tell` hears of each that is passed over."""
    for each in reversed(saved(directory)):
        try:
            return each.path, check(each.path)
        except CheckpointDamaged as error:
            tell(f"{error}; trying an earlier one")
    return None


# --- writing ----------------------------------------------------------------------------------------------
def workplace(directory: Path, step: int) -> Path:
    """Where the files of a checkpoint are written before it has its name."""
    return directory / f"{_SAVING}step-{step}"


def publish(directory: Path, index: Index) -> Path:
    """All files are on the disk: give the checkpoint its index and its name."""
    place = workplace(directory, index.step)
    target = directory / f"step-{index.step}"
    disk.write_file(place / FILE, [encode(index)])
    disk.sync_folder(place)
    if target.exists():  # a damaged one: a sound one would have been resumed from, and not been made again
        _remove(target)
    disk.rename(place, target)
    disk.sync_folder(directory)
    return target


def retain(directory: Path, keep: int, step: int) -> None:
    """Remove all but the newest `keep` up to `step`, which was just published.

    Those of later steps are damaged, or the job would have begun from them: they count for nothing.
    """
    for each in [each for each in saved(directory) if each.step <= step][:-keep]:
        _remove(each.path)


def abandon(directory: Path, step: int) -> None:
    """Saving failed: leave nothing of it."""
    disk.remove_folder(workplace(directory, step))


def tidy(directory: Path) -> None:
    """Remove what a crash has left. Only with the lock."""
    for path in directory.iterdir():
        if path.name.startswith((_SAVING, _LEAVING)):
            disk.remove_folder(path)


def _remove(path: Path) -> None:
    """Take the name away first: half of a checkpoint must not look like one."""
    leaving = path.with_name(f"{_LEAVING}{path.name}-{time.time_ns()}")
    disk.rename(path, leaving)
    disk.remove_folder(leaving)


# --- one job a directory ----------------------------------------------------------------------------------
def check_writable(directory: Path) -> None:
    """Make the directory, and try to write; raises ConfigError."""
    probe = directory / f".probe-{os.getpid()}-{time.time_ns()}"
    try:
        disk.make_folder(directory)
        disk.write_file(probe, [b"argosy"])
        disk.remove_file(probe)
    except OSError as error:
        remedy = "give one that every server can write to, or directory=None to save nothing"
        raise ConfigError(
            "directory",
            f"a place to write to at {directory}",
            "a file" if isinstance(error, FileExistsError) else error.strerror,
            remedy,
        ) from None


class Lock:
    """Held by one job for as long as it writes into a directory; gone with the process."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self._descriptor, 200).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise ConfigError(
                "directory",
                "one that no other job writes to",
                f"{directory}, which is in use by {owner or 'another process'}",
                "wait until it has ended, or choose another directory",
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let others in."""
        os.close(self._descriptor)


def is_written_to(directory: Path) -> bool:
    """Whether a job holds the lock of a directory."""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
