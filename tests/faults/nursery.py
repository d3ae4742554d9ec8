"""Starts tasks, also on hosts that are network namespaces, and imports torch once for all of them.

Reads one JSON object a line: `namespace` ("": none), `argv`, `environ`, `out`. What a task says goes to the
file `out`, its process id to one that ends in `.pid`, its code to one that ends in `.code`. When the
nursery's input ends, it ends every task that still runs.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import runpy
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from argosy.launch.job import PRELOAD

_NETWORK = 0x40000000  # CLONE_NEWNET


def enter(namespace: str) -> None:
    """Move this process to a host."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", encoding="ascii") as file:
        if libc.setns(file.fileno(), _NETWORK):
            raise OSError(ctypes.get_errno(), f"setns: {namespace}")


def begin(order: dict[str, Any]) -> NoReturn:
    """A task's whole life, in a process of its own."""
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, to in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(descriptor, to)
    if order["namespace"]:
        enter(order["namespace"])
    os.environ.update(order["environ"])
    sys.argv = order["argv"]
    code = run(sys.argv[0])
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # to take down all that was imported would take longer than the job


def run(script: str) -> int:
    """Run it as Python would; the exit code."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def main() -> None:
    """Until there is nobody to start tasks for."""
    for module in PRELOAD:
        importlib.import_module(module)
    running: dict[int, str] = {}
    unread = b""
    wanted = True
    while wanted or running:
        if wanted and select.select([0], [], [], 0.02)[0]:
            data = os.read(0, 65536)
            wanted = bool(data)
            *lines, unread = (unread + data).split(b"\n")
            for order in map(json.loads, lines):
                if not (pid := os.fork()):
                    begin(order)
                running[pid] = order["out"]
                Path(order["out"]).with_suffix(".pid").write_text(str(pid))
            for pid in () if wanted else running:
                os.kill(pid, signal.SIGKILL)
        pid, status = os.waitpid(-1, os.WNOHANG) if running else (0, 0)
        if pid:
            out = Path(running.pop(pid))
            whole = out.with_suffix(".ended")
            whole.write_text(str(os.waitstatus_to_exitcode(status)))
            whole.rename(out.with_suffix(".code"))


if __name__ == "__main__":
    main()
