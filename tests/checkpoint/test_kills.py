"""Killed with -9 at any system call of a save, what is found is the old checkpoint or the new one.

A child process saves over an older checkpoint and kills itself before the n-th change to the disk, in the
middle of it (half of a write), or after it; for every n, with one and with three servers, with retention.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_folder import save

from argosy.checkpoint import disk
from argosy.checkpoint.archive import Archive
from argosy.checkpoint.tensor_reader import load

CALLS = ("create", "write", "sync", "rename", "make_folder", "remove_file")
LEAST_KILLS = 200


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fault:
    """Kills this process at the n-th call of any function that changes the disk."""

    def __init__(self, number: int, moment: str) -> None:
        self._left = number
        self._moment = moment
        for name in CALLS:
            setattr(disk, name, self._wrap(name, getattr(disk, name)))

    def _wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._moment == "before":
                die()
            if self._left == 0 and self._moment == "middle" and name == "write":
                view = memoryview(args[1]).cast("B")
                os.write(args[0], view[: len(view) // 2])
                die()
            result = call(*args)
            if self._left == 0:
                die()
            return result

        return wrapped


def save_in_child(directory: Path, step: int, servers: int, number: int, moment: str) -> bool:
    """Save in a process that dies at its n-th change to the disk; whether it did."""
    child = os.fork()
    if child == 0:
        try:
            archive = Archive(directory, keep=2)
            Fault(number, moment)
            save(archive, step, servers=servers)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork beside threads: none of ours runs
def test_the_old_or_the_new_one_is_found(tmp_path: Path) -> None:
    kills = 0
    seen = set()
    for servers in (1, 2, 3):
        for moment in ("before", "middle", "after"):
            number, step = 0, 10
            directory = tmp_path / f"{servers}-{moment}"
            made = Archive(directory, keep=2)
            for first in (8, 9):  # so that the next one also removes one
                save(made, first, servers=servers)
            made.close()
            newest, died = 9.0, True
            while died:
                number += 1
                died = save_in_child(directory, step, servers, number, moment)
                kills += died
                found = load(directory)["w"].unique().tolist()
                assert found in ([newest], [float(step)]), f"{servers} servers, {moment} call {number}"
                seen.add(found == [newest])
                newest, step = found[0], step + 1
            assert newest == step - 1  # the one that was not killed
    assert kills >= LEAST_KILLS
    assert seen == {True, False}
