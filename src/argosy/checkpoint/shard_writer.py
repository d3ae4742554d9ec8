"""Writes one process's file of a checkpoint in a thread, while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from argosy.checkpoint import disk, folder, safetensors
from argosy.checkpoint.archive import describe
from argosy.checkpoint.safetensors import Entry
from argosy.protocol.saving import ShardFile


class ShardWriter:
    """One file at a time: `write` it, and ask for its `result`."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="argosy-writer")
        self._writing: Future[ShardFile] | None = None
        self._step = 0

    def write(self, step: int, entries: Callable[[], Sequence[Entry]]) -> None:
        """Begin. What `entries` gives, in the thread, must stay as it is until the result is there."""
        self._step = step
        self._writing = self._thread.submit(self._write, step, entries)

    def _write(self, step: int, entries: Callable[[], Sequence[Entry]]) -> ShardFile:
        place = folder.workplace(self._directory, step)
        disk.make_folder(place)
        size, checksum = safetensors.write(place / self._name, entries())
        return ShardFile(self._name, size, checksum)

    @property
    def busy(self) -> bool:
        """Whether a file is being written, or its result was not asked for."""
        return self._writing is not None

    def result(self) -> tuple[int, ShardFile | None, str] | None:
        """Of the file that was written last: its step, itself, or what went wrong. Once."""
        if self._writing is None or not self._writing.done():
            return None
        future, self._writing = self._writing, None
        try:
            return self._step, future.result(), ""
        except OSError as error:
            return self._step, None, f"{self._name}: {describe(error)}"

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._writing is not None:
            wait([self._writing])

    def close(self) -> None:
        """Finish what is being written."""
        self._thread.shutdown()
