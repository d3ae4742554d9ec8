"""Where a job keeps its checkpoints: publishes those whose files are written, and retains the newest.

Held by the coordinator, or by the only process of a job. What touches the disk while training goes on runs
in a thread; `poll` says what has become of it.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import torch

from argosy.checkpoint import folder
from argosy.checkpoint.index import Index
from argosy.errors import SaveFailed
from argosy.protocol.saving import ShardFile


@dataclass(frozen=True)
class SaveOutcome:
    """What became of a cut: saved at `path`; or not, and why, in the directory `path`."""

    step: int
    path: Path
    nbytes: int = 0
    seconds: float = 0.0
    error: str = ""

    @property
    def failure(self) -> SaveFailed | None:
        """The error of a final save that failed, which nobody may miss."""
        if not self.error:
            return None
        before = [each.step for each in folder.saved(self.path)]
        return SaveFailed(self.step, self.path, self.error, max(before, default=None))


class Archive:
    """A directory of checkpoints, written by this job alone. Raises ConfigError if it cannot be."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self._keep = keep
        folder.check_writable(directory)
        self._lock = folder.Lock(directory)
        folder.tidy(directory)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="argosy-archive")
        self._publishing: Future[SaveOutcome] | None = None
        self._began = 0.0

    def newest(self, tell: Callable[[str], None]) -> tuple[Path, Index] | None:
        """The checkpoint to go on from."""
        return folder.newest(self.directory, tell)

    def begin(self) -> None:
        """A cut has been made: it is timed from now on."""
        self._began = time.monotonic()

    def publish(
        self,
        index: Index,
        files: Sequence[ShardFile],
        replicas: Mapping[int, bytes],
        errors: Sequence[str] = (),
    ) -> None:
        """Give a checkpoint of these files its name, with every replica's state; with errors, remove it."""
        whole = msgspec.structs.replace(index, shards=tuple(files), replicas=dict(replicas))
        self._publishing = self._thread.submit(self._publish, whole, errors)

    def _publish(self, index: Index, errors: Sequence[str]) -> SaveOutcome:
        try:
            if errors:
                folder.abandon(self.directory, index.step)
                return SaveOutcome(index.step, self.directory, error="; ".join(errors))
            path = folder.publish(self.directory, index)
        except OSError as error:
            return SaveOutcome(index.step, self.directory, error=describe(error))
        seconds = time.monotonic() - self._began
        with contextlib.suppress(OSError):  # it is saved; what is too old goes the next time
            folder.retain(self.directory, self._keep, index.step)
        return SaveOutcome(index.step, path, index.nbytes, seconds)

    def poll(self) -> SaveOutcome | None:
        """What has become of the checkpoint, once."""
        if self._publishing is None or not self._publishing.done():
            return None
        publishing, self._publishing = self._publishing, None
        return publishing.result()

    def wait(self) -> None:
        """Until nothing is being published."""
        if self._publishing is not None:
            wait([self._publishing])

    def close(self) -> None:
        """Finish what is being written, and let others in."""
        self._thread.shutdown()
        self._lock.release()


def describe(error: OSError) -> str:
    """An error of the disk, for a person."""
    return error.strerror or str(error)


def versions() -> dict[str, str]:
    """Which versions write a checkpoint: of Argosy, torch and Python."""
    return {"argosy": _mine(), "torch": str(torch.__version__), "python": platform.python_version()}


@cache  # it is looked for on the disk, while a server makes everybody wait
def _mine() -> str:
    try:
        return version("argosy")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0"
