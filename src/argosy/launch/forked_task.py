"""What a forked task does before its script runs, so that the script cannot tell it from a cold start.

Called by the fork server's program. A cold start has a session, an environment, streams, seeds and a
`__main__` of its own; a fork has copies of the server's.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import os
import select
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

from argosy.launch.guard import watch_this_process

# The launcher's word that it has taken note of the task.
GO = b"!"


def free_at_exit_what_is_checked() -> None:
    """Once, before the first fork: where an extension checks at exit that all of it was freed, have it freed.

    nanobind does, and prints a hundred lines about what is left. What is frozen is never collected, not even
    at exit, which saves each task most of a second; a cold start collects it.
    """
    if any(_is_nanobind(value) for module in list(sys.modules.values()) for value in _values(module)):
        atexit.register(gc.unfreeze)


def _values(module: object) -> list[object]:
    return list(getattr(module, "__dict__", {}).values())


def _is_nanobind(value: object) -> bool:
    """Whether this is a function or a class of an extension that was made with nanobind."""
    name = getattr(type(value), "__module__", None)
    return isinstance(name, str) and name.partition(".")[0] == "nanobind"


def arrive(parent: int, environ: dict[str, str], names: Sequence[str], files: Sequence[int]) -> None:
    """Lead a group that the guard knows, become the launcher's child, and take over what it handed on.

    `names`: the variables of `environ` that are to tell the numbers of the files after the first four.
    """
    output, errors, guard, launcher, *handed = files
    os.setsid()
    with socket.socket(fileno=guard) as link:
        watch_this_process(link)
    _await_end(parent)
    with socket.socket(fileno=launcher) as link:
        _report(link)
    for file, number in ((output, 1), (errors, 2)):
        os.dup2(file, number)
        os.close(file)
    for name, file in zip(names, handed, strict=True):
        os.set_inheritable(file, True)  # as after exec
        environ[name] = str(file)


def _await_end(process: int) -> None:
    """When it can be read, its children have been given to whoever adopts them."""
    poller = select.poll()
    poller.register(process, select.POLLIN)
    poller.poll()
    os.close(process)


def _report(launcher: socket.socket) -> None:
    """Tell the number; a task that the launcher has given up must not run."""
    try:
        launcher.sendall(str(os.getpid()).encode())
        told = launcher.recv(1)
    except OSError:
        told = b""
    if told != GO:
        os._exit(1)


def run_script(environ: Mapping[str, str]) -> None:
    """Run the script that `sys.argv` names as `python SCRIPT` does; it ends as the interpreter ends."""
    os.environ.clear()
    os.environ.update(environ)
    _reseed()
    gc.enable()
    path = os.path.join(os.getcwd(), sys.argv[0])
    source = _read(path)
    module = sys.modules["__main__"] = _main_module(path)
    try:
        exec(compile(source, path, "exec", dont_inherit=True), vars(module))
    except SystemExit:
        raise
    except BaseException as error:
        # The interpreter itself shall report it and choose the exit code, without our frames.
        _hide_frames(error.__traceback__ and error.__traceback__.tb_next)
        raise


def _reseed() -> None:
    """A cold start draws these anew; forks of one process would draw alike. (`random` sees to itself.)"""
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        processes.current_process().authkey = os.urandom(32)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {path!r}: {reason}", file=sys.stderr)
        sys.exit(2)


def _main_module(path: str) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = SourceFileLoader("__main__", path)
    vars(module).update(__annotations__={}, __builtins__=builtins, __cached__=None)
    return module


def _hide_frames(inner: TracebackType | None) -> None:
    hook = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        sys.excepthook = hook
        sys.last_traceback = inner
        hook(kind, error.with_traceback(inner), inner)

    sys.excepthook = show
