"""The open files that a task is handed: the socket that it listens at, and memory that outlives its process.

Used by `launch.starting`. For a server that may be started again the launcher keeps both: its next process
listens where the first one did, those who connect meanwhile wait for it, and it finds what was in the memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from argosy.cluster.settings import LISTEN_FD, MEMORY_FD
from argosy.cluster.spec import Task
from argosy.launch.ports import Ports

_MEMORY_NAME = "argosy-server"


class Descriptors:
    """What is there to be handed over. `lasting`: the servers that get memory; `ports` is not ours."""

    def __init__(self, ports: Ports, lasting: Iterable[Task] = ()) -> None:
        self._ports = ports
        self._memory: dict[Task, int] = {}
        try:
            for task in lasting:
                # A server may want to seal the size of what it shares with others.
                flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
                self._memory[task] = os.memfd_create(_MEMORY_NAME, flags)
        except OSError:
            self.close()
            raise

    @contextmanager
    def handed(self, task: Task, keep: bool) -> Iterator[Mapping[str, int]]:
        """The descriptors of a task that is started meanwhile, by their variables.

        `keep`: hold on to its socket, as another process of the task may need it.
        """
        files = {MEMORY_FD: self._memory[task]} if task in self._memory else {}
        listener = self._ports.take_listener(task, keep)
        if listener is None:
            yield files
            return
        with listener:
            yield {LISTEN_FD: listener.fileno()} | files

    def release(self, task: Task) -> None:
        """It is not started again: who connects to it from now on shall be refused."""
        self._ports.release(task)

    def close(self) -> None:
        """Give the memory back; what tasks still hold of it is theirs."""
        for descriptor in self._memory.values():
            os.close(descriptor)
        self._memory.clear()
