"""The fork server's program: imports once what every task needs, then forks the tasks, one a request.

`fork_client` starts it as `python [FLAGS] fork_server.py SCRIPT ARGS`, in the environment that all tasks of
the job share, with a socket to the launcher as standard output. It only imports: no operation of torch, no
context of ZeroMQ, no thread, for a fork would copy them without what they need. `forked_task` says what a
fork does next. The top imports from the standard library only: the path is not yet the script's.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Environ = dict[str, str]

_HEADER = 8
_MOST_FILES = 8


def send(link: socket.socket, message: object, files: Sequence[int] = ()) -> None:
    """One message, and open files with it."""
    body = json.dumps(message).encode()  # ASCII, whatever bytes a variable of the environment holds
    data = len(body).to_bytes(_HEADER, "big") + body
    sent = socket.send_fds(link, [data], files)
    link.sendall(data[sent:])


def receive(link: socket.socket) -> tuple[Any, list[int]]:
    """The next message and its files; EOFError when the other side has gone."""
    header, files, _, _ = socket.recv_fds(link, _HEADER, _MOST_FILES)
    for file in files:
        os.set_inheritable(file, False)
    body = _read(link, int.from_bytes(header, "big")) if header else _gone()
    try:
        return json.loads(body), files
    except (ValueError, RecursionError):  # whoever this is, it is not the other side
        return _gone(), files


def _read(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        data += link.recv(size - len(data)) or _gone()
    return bytes(data)


def _gone() -> Any:
    raise EOFError


def _main() -> None:
    link = socket.socket(fileno=os.dup(1))
    os.dup2(2, 1)  # what an import prints must not become a message
    _look_like_the_script()
    modules, _ = receive(link)
    refusal = _prepare(modules)
    send(link, refusal)
    if refusal is not None:
        os._exit(0)
    from argosy.launch import forked_task

    forked_task.free_at_exit_what_is_checked()
    forked_task.run_script(_serve(link, forked_task.arrive))


def _look_like_the_script() -> None:
    """Arguments and path of `python [FLAGS] SCRIPT ARGS`, so that imports find what they would find there."""
    del sys.orig_argv[-len(sys.argv)]
    del sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))


def _prepare(modules: Iterable[str]) -> str | None:
    """Import; why nothing can be forked from here, or None."""
    # Tasks share the pages of what is imported until one writes to them, as every collection would.
    gc.disable()
    try:
        for name in (*modules, "argosy.launch.forked_task"):
            importlib.import_module(name)
    except BaseException as error:  # a module may even exit
        return f"{type(error).__name__}: {error}".splitlines()[0]
    if _threads() > 1:
        _fork_for_nothing()
    if (threads := _threads()) > 1:
        return f"{threads} threads run after the imports, and a fork would lose them"
    gc.freeze()
    return None


def _threads() -> int:
    """All of them, not only Python's."""
    return len(os.listdir("/proc/self/task"))


def _fork_for_nothing() -> None:
    """Pools that are ready for a fork, such as OpenBLAS's, end their threads before it until next used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _serve(link: socket.socket, arrive: Callable[[int, Environ, list[str], list[int]], None]) -> Environ:
    """Fork a task a request; returns in the tasks, with their environment. The server ends in here."""
    while True:
        try:
            message, files = receive(link)
        except (EOFError, ConnectionError):
            os._exit(0)
        between = os.fork()
        if between == 0:
            link.close()
            # The process in between ends at once, and the task becomes a child of the launcher, which adopts.
            parent = os.pidfd_open(os.getpid())
            if os.fork() != 0:
                os._exit(0)
            environ: Environ
            environ, names = message
            arrive(parent, environ, names, files)
            return environ
        for file in files:
            os.close(file)
        os.waitpid(between, 0)


if __name__ == "__main__":
    _main()
