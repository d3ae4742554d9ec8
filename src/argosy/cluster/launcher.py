"""What a task and its launcher tell each other: a socket that is handed over, and files beside the task's
error record.

A task leaves a mark when it joins its cluster. The launcher leaves a note when a task has failed, which those
who wait for that task look for: one that fails early knows nobody whom it could tell. Another note lists the
workers that it does not start again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from argosy.cluster.settings import ERROR_FILE, LISTEN_FD, MEMORY_FD
from argosy.errors import JobFailed
from argosy.events import say


def joined_file(error_file: Path) -> Path:
    """The mark of the task whose error record would be there."""
    return error_file.with_suffix(".joined")


def failure_file(error_file: Path) -> Path:
    """The launcher's note, the same for all tasks of a job."""
    return error_file.with_name("failure")


def given_up_file(error_file: Path) -> Path:
    """The list of the tasks that are not started again, the same for all tasks of a job."""
    return error_file.with_name("given-up")


def handed_socket() -> int | None:
    """The listening socket that a launcher has made for this task, kept from its own children."""
    return _handed(LISTEN_FD)


def handed_memory() -> int | None:
    """A memfd of the launcher's, empty at first, that the next process of this task will be handed too."""
    return _handed(MEMORY_FD)


def _handed(name: str) -> int | None:
    text = os.environ.pop(name, "")
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
    _replace(path, [task, reason])


def write_given_up(path: Path, tasks: Iterable[str]) -> None:
    """The launcher's part: these are not started again."""
    _replace(path, sorted(tasks))


def _replace(path: Path, content: Sequence[str]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content), encoding="utf-8")
    fresh.replace(path)


def tasks_given_up() -> frozenset[str]:
    """The tasks, by their names, that the launcher does not start again."""
    path = os.environ.get(ERROR_FILE)
    if not path:
        return frozenset()
    try:
        return frozenset(json.loads(given_up_file(Path(path)).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return frozenset()


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
