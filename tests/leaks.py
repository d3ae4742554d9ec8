"""Whatever a test leaves behind fails it: processes, threads, sockets, ZeroMQ contexts, memory, files."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

# What ends by itself has so long to do it.
PATIENCE = 3.0
_KINDS = ("socket:", "anon_inode:[eventpoll]", "anon_inode:[eventfd]", "/memfd:")


@pytest.fixture(scope="session", autouse=True)
def own_temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Everything temporary, of child processes too, goes where no other program makes files."""
    directory = tmp_path_factory.mktemp("temporary")
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
    yield directory
    tempfile.tempdir = None
    if before is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before


@pytest.fixture(autouse=True)
def nothing_is_left(own_temporary_directory: Path) -> Iterator[None]:
    """Fails the test if there is more afterwards than there was before."""
    before = _everything(own_temporary_directory)
    yield
    deadline = time.monotonic() + PATIENCE
    while left := _everything(own_temporary_directory) - before:
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {', '.join(sorted(left))}")
        gc.collect()  # what only a cycle holds is not lost; on a busy machine this alone takes seconds
        time.sleep(0.02)


def _everything(temporary: Path) -> set[str]:
    return {*_threads(), *_children(), *_descriptors(), *_mapped(), *_files(temporary)}


def _threads() -> Iterator[str]:
    return (f"thread {thread.name} {thread.ident}" for thread in threading.enumerate())


def _children() -> Iterator[str]:
    for children in Path("/proc/self/task").glob("*/children"):
        try:
            pids = children.read_text().split()
        except OSError:  # the thread has ended meanwhile
            continue
        for pid in pids:
            status = Path(f"/proc/{pid}/stat")
            with suppress(OSError):  # it has ended meanwhile
                words = status.read_text().rpartition(")")[2].split()
                command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
                if words[0] != "Z":
                    yield f"process {pid} {command[:80]}"


def _descriptors() -> Iterator[str]:
    """Sockets, and what ZeroMQ and epoll are made of."""
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith(_KINDS):
            yield f"descriptor {number} {target}"


def _mapped() -> Iterator[str]:
    maps = Path("/proc/self/maps").read_text()
    if "memfd:argosy" in maps:
        yield from (f"memory {line.split()[0]}" for line in maps.splitlines() if "memfd:argosy" in line)


def _files(temporary: Path) -> Iterator[str]:
    for directory in (temporary, Path("/dev/shm")):
        yield from (str(path) for path in directory.glob("argosy*"))
