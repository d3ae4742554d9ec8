"""What a task and its launcher tell each other: a socket that is handed over, and files beside the task's
error record.

A task leaves a mark when it joins its cluster. The launcher leaves a note when a task has failed, which those
who wait for that task look for: one that fails early knows nobody whom it could tell.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from argosy.cluster.settings import ERROR_FILE, LISTEN_FD
from argosy.errors import JobFailed
from argosy.events import say


def joined_file(error_file: Path) -> Path:
    """The mark of the task whose error record would be there."""
    return error_file.with_suffix(".joined")


def failure_file(error_file: Path) -> Path:
    """The launcher's note, the same for all tasks of a job."""
    return error_file.with_name("failure")


def handed_socket() -> int | None:
    """The listening socket that a launcher has made for this task, kept from its own children."""
    text = os.environ.pop(LISTEN_FD, "")
    if not text:
        return None
    descriptor = int(text)
    os.set_inheritable(descriptor, False)
    return descriptor


def mark_joined() -> None:
    """This task has joined: called by all that makes it a part of its cluster."""
    if path := os.environ.get(ERROR_FILE):
        try:
            joined_file(Path(path)).touch()
        except OSError as error:
            say(f"cannot write {joined_file(Path(path))}: {error.strerror}")


def write_failure(path: Path, task: str, reason: str) -> None:
    """The launcher's part: whole, or not at all."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps([task, reason]), encoding="utf-8")
    fresh.replace(path)


def failure_elsewhere() -> JobFailed | None:
    """What the launcher says of a task that has failed, if anything: asked by who waits, once in a while."""
    path = os.environ.get(ERROR_FILE)
    if not path:
        return None
    try:
        task, reason = json.loads(failure_file(Path(path)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return JobFailed(task, reason)


def raise_failure_elsewhere() -> None:
    """Raise it, if there is any."""
    if (failure := failure_elsewhere()) is not None:
        raise failure
