"""How a task ends: what it tells the servers, the launcher and the person, whichever way it goes.

Installed by `join()`. An error that nobody caught ends the job; a script that just ends leaves it; errors of
Argosy itself are one line, and a ConfigError exits with code 2.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from argosy.cluster.settings import ERROR_FILE
from argosy.cluster.spec import Task
from argosy.errors import USAGE_EXIT_CODE, ArgosyError, CallError, ConfigError, JobFailed, TaskLost
from argosy.events import say


def describe(error: BaseException) -> str:
    """An error in one line, as a traceback ends; for the other tasks."""
    if isinstance(error, CallError):
        return error.brief
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]


def write_record(task: Task, error: BaseException) -> None:
    """Leave what happened where the launcher looks for it; the first cause only once."""
    path = os.environ.get(ERROR_FILE)
    if not path or Path(path).exists():
        return
    ours = isinstance(error, ArgosyError)
    record = {
        "task": str(task),
        "time": time.time(),
        "caused_by": error.task if isinstance(error, JobFailed | TaskLost) else None,
        "message": str(error) if ours else describe(error),
        "traceback": "" if ours else "".join(traceback.format_exception(error)),
        "brief": error.brief if isinstance(error, CallError) else "",
    }
    whole = Path(f"{path}.{os.getpid()}")
    try:
        whole.write_text(json.dumps(record), encoding="utf-8")
        whole.replace(path)
    except OSError as problem:  # the launcher then goes by what was printed
        say(f"cannot write {whole}: {problem.strerror}")


def install(task: Task, leave: Callable[[], None], fail: Callable[[str], None]) -> None:
    """Have this process end well. `leave` and `fail` may be called more than once."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        write_record(task, error)
        if not isinstance(error, ArgosyError):
            previous(kind, error, trace)
            fail(describe(error))
            return
        if error.__cause__ is not None:  # of the user's own code, in a hook: that is where to look
            previous(type(error.__cause__), error.__cause__, error.__cause__.__traceback__)
        # A mistake in the script is made by every task: the launcher says it once.
        if not (isinstance(error, CallError) and os.environ.get(ERROR_FILE)):
            say(f"error: {error}")
        fail(describe(error) if isinstance(error, CallError) else str(error))
        if isinstance(error, ConfigError):
            sys.stdout.flush()
            sys.stderr.flush()
            # The interpreter would exit with 1, and offers no way to say otherwise from here.
            os._exit(USAGE_EXIT_CODE)

    sys.excepthook = hook
    atexit.register(leave)
