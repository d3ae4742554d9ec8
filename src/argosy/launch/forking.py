"""The launcher's side of the fork server: starts it, asks it for tasks, and is their parent all the same.

The server forks twice and the process in between ends, so that the kernel gives the task to the launcher, which
adopts orphans meanwhile. From then on a forked task is a child like any other, and nothing depends on the
server: should it die, the tasks that it forked go on, and the next ones are started cold.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from argosy.launch.fork_server import receive, send
from argosy.launch.guard import Guard

_PROGRAM = Path(__file__).with_name("fork_server.py")
_GO = b"!"
# A fork takes some milliseconds. Longer than this, somebody has stopped the server.
_PATIENCE = 10.0
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class ForkFailed(Exception):
    """The fork server started no task; says why."""


class ForkedProcess:
    """What the launcher uses of subprocess.Popen, for a child that it did not start itself."""

    def __init__(self, pid: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None

    def wait(self) -> int:
        """The return code, -n for signal n."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class ForkServer:
    """One process that has imported `preload`, to be forked. `command` is FLAGS and SCRIPT and ARGS."""

    def __init__(
        self,
        flags: Sequence[str],
        command: Sequence[str],
        environ: Mapping[str, str],
        preload: Sequence[str],
        guard: Guard,
    ) -> None:
        self._guard = guard
        self._link, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *flags, str(_PROGRAM), *command],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=theirs.fileno(),
                start_new_session=True,
                preexec_fn=guard.watch_this_process,
            )
        with contextlib.suppress(ConnectionError):  # `wait_until_ready` will tell
            send(self._link, list(preload))

    @property
    def pid(self) -> int:
        """The server's own process, and its group."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Until all is imported; ForkFailed if that cannot be, or if tasks must not be forked from it."""
        try:
            refusal, _ = receive(self._link)
        except (EOFError, ConnectionError):
            raise ForkFailed(self._how_it_ended()) from None
        if refusal is not None:
            raise ForkFailed(refusal)

    def start(self, environ: Mapping[str, str], listener: socket.socket | None) -> ForkedProcess:
        """Fork a task, which leads its group and is known to the guard; ForkFailed if none was."""
        with ExitStack() as ours, ExitStack() as theirs, _adopting():
            output, errors = _pipe(ours, theirs), _pipe(ours, theirs)
            near, far = socket.socketpair()
            ours.enter_context(near)
            theirs.enter_context(far)
            handed = [output[1], errors[1], self._guard.fileno(), far.fileno()]
            handed += [] if listener is None else [listener.fileno()]
            try:
                send(self._link, dict(environ), handed)
                theirs.close()  # or the end of the server would not be seen
                pid = _await_arrival(near)
                near.sendall(_GO)
            except (EOFError, OSError) as error:
                raise ForkFailed(str(error) or self._how_it_ended()) from None
            near.close()
            ours.pop_all()
            return ForkedProcess(pid, output[0], errors[0])
