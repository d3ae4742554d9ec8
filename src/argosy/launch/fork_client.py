"""The launcher's side of the fork server: starts it, asks it for tasks, and is their parent all the same.

The server forks twice and the process in between ends, so that the kernel gives the task to the launcher,
which adopts orphans meanwhile. From then on a forked task is a child like any other, and nothing depends on
the server: should it die, the tasks that it forked go on, and the next ones are started cold.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from argosy.launch.fork_server import receive, send
from argosy.launch.forked_task import GO
from argosy.launch.guard import Guard
from argosy.launch.job_events import signal_name

_PROGRAM = Path(__file__).with_name("fork_server.py")
# A fork takes some milliseconds. Longer than this, somebody has stopped the server.
_PATIENCE = 10.0
# Between the end of its socket and its own.
_LAST_MOMENT = 1.0
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
    """One process that imports `preload`, to be forked into `python FLAGS COMMAND`."""

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

    def fileno(self) -> int:
        """For poll: readable when it has imported all, or when it never will."""
        return self._link.fileno()

    def wait_until_ready(self) -> None:
        """Until all is imported; ForkFailed if that cannot be, or if tasks must not be forked from it."""
        try:
            refusal, _ = receive(self._link)
        except (EOFError, ConnectionError):
            raise ForkFailed(self._how_it_ended()) from None
        if refusal is not None:
            raise ForkFailed(refusal)

    def start(self, environ: Mapping[str, str], handed: Mapping[str, int]) -> ForkedProcess:
        """Fork a task, which leads its group and is known to the guard; ForkFailed if none was.

        `handed`: open files that it gets, by the variables that tell it their numbers.
        """
        with ExitStack() as ours, ExitStack() as theirs, _adopting():
            output, errors = _pipe(ours, theirs), _pipe(ours, theirs)
            near, far = socket.socketpair()
            ours.enter_context(near)
            theirs.enter_context(far)
            files = [output[1].fileno(), errors[1].fileno(), self._guard.fileno(), far.fileno()]
            self._link.settimeout(_PATIENCE)
            try:
                send(self._link, [dict(environ), list(handed)], [*files, *handed.values()])
                theirs.close()  # or the end of the server would not be seen
                pid = _await_arrival(near)
            except (EOFError, OSError):
                raise ForkFailed(self._how_it_ended()) from None
            with contextlib.suppress(OSError):  # killed meanwhile, it will be collected like any other
                near.sendall(GO)
            ours.pop_all()
            near.close()
            return ForkedProcess(pid, output[0], errors[0])

    def close(self) -> None:
        """End the server; the tasks that it forked are not its own."""
        self._link.close()
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        self._guard.forget(self.pid)

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(_LAST_MOMENT)
        except subprocess.TimeoutExpired:
            return "it does not answer"
        return f"it was killed by {signal_name(-code)}" if code < 0 else f"it ended with exit code {code}"


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    return (
        ours.enter_context(open(reader, "rb", buffering=0)),
        theirs.enter_context(open(writer, "wb", buffering=0)),
    )


def _await_arrival(task: socket.socket) -> int:
    """The number of a process that is ours by now."""
    task.settimeout(_PATIENCE)
    number = task.recv(32)
    if not number:
        raise EOFError
    return int(number)


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Meanwhile, who loses its parent among our descendants becomes our child."""
    before = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3) != 0:
        number = ctypes.get_errno()
        raise ForkFailed(f"prctl: {os.strerror(number)}")
