"""The words a task is configured by: one table of settings, and how each is read.

A setting `x_y` is the flag `--x_y` (or `--x-y`) and the variable `ARGOSY_X_Y`. The launcher writes the
variables, `discover` reads both, `docs/configuration.md` lists them; this table is what they share.
"""

from __future__ import annotations

from collections.abc import Mapping

from argosy.errors import ConfigError
from argosy.modes import Async, Local, Mode, Ring, Sync

# Taken out of sys.argv by `join()`.
FLAGS = (
    "job_name",
    "task_index",
    "ps_hosts",
    "worker_hosts",
    "cluster",
    "mode",
    "is_sync",
    "aggregate",
    "late",
    "tokens",
    "max_staleness",
    "num_gpus",
    "bind",
    "insecure",
    "wait",
    "lease",
    "max_restarts",
    "on_loss",
    "min_workers",
    "stall_after",
    "lane",
)
# Flags that may stand alone: `--insecure` means `--insecure=true`.
SWITCHES = frozenset({"insecure", "is_sync"})

MODES = ("sync", "async", "ring")
LANES = ("auto", "network")
ON_LOSS = ("wait", "shrink")
DEFAULT_WAIT = 600.0
# Who waits says so this often, in seconds.
NOTICE_EVERY = 5.0

# Variables by which the launcher hands a task what a flag cannot carry.
LISTEN_FD = "ARGOSY_LISTEN_FD"
# A memfd that outlives a server's process: what it keeps there, the next process of this task finds.
MEMORY_FD = "ARGOSY_MEMORY_FD"
ERROR_FILE = "ARGOSY_ERROR_FILE"
# It shows the job's progress, so the tasks need not; where there are no servers to ask, it looks here.
STATUS_FILE = "ARGOSY_STATUS_FILE"

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def variable(setting: str) -> str:
    """The environment variable of a setting."""
    return f"ARGOSY_{setting.upper()}"


def read_bool(field: str, text: str) -> bool:
    """`True`, `1`, `yes`, `on`, or their opposites."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ConfigError(field, "true or false", repr(text))


def read_int(field: str, text: str, least: int = 0) -> int:
    """A whole number of at least `least`."""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigError(field, f"a whole number, {least} or more", repr(text))
    return number


def read_seconds(field: str, text: str) -> float:
    """A duration."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(field, "a number of seconds greater than 0", repr(text))
    return seconds


def read_mode(words: Mapping[str, str]) -> Mode | None:
    """The mode that the settings describe, or None if they say nothing about it."""
    name = words.get("mode")
    if "is_sync" in words:
        by_flag = "sync" if read_bool("is_sync", words["is_sync"]) else "async"
        if name is not None and name != by_flag:
            raise ConfigError("mode", f"{by_flag}, as is_sync={words['is_sync']} says", repr(name))
        name = by_flag
    if name is not None and name not in MODES:
        raise ConfigError("mode", f"one of {', '.join(MODES)}", repr(name))
    if name is None and "max_staleness" in words:
        name = "async"
    _refuse_stray(words, ("aggregate", "late", "tokens"), "sync", name)
    _refuse_stray(words, ("max_staleness",), "async", name)
    if name == "sync":
        return _read_sync(words)
    if name == "ring":
        return Ring()
    if name == "async":
        bound = words.get("max_staleness")
        return Async(max_staleness=None if bound is None else read_int("max_staleness", bound))
    return None


def _read_sync(words: Mapping[str, str]) -> Sync:
    aggregate = words.get("aggregate")
    tokens = words.get("tokens")
    late = words.get("late", "drop")
    if late not in ("drop", "fold"):
        raise ConfigError("late", "drop or fold", repr(late))
    return Sync(
        aggregate=None if aggregate is None else read_int("aggregate", aggregate, least=1),
        late="fold" if late == "fold" else "drop",
        distinct=tokens is None,
        tokens=None if tokens is None else read_int("tokens", tokens),
    )


def _refuse_stray(words: Mapping[str, str], settings: tuple[str, ...], mode: str, name: str | None) -> None:
    for setting in settings:
        if setting in words and name != mode:
            raise ConfigError(setting, f"mode {mode}", f"mode {name or 'not set'}", f"add --mode {mode}")


def choose_mode(asked: Mode | None, servers: int, workers: int) -> Mode:
    """The mode of a cluster: what was asked, checked against it, or what its shape suggests."""
    if asked is None:
        if servers:
            return Async()
        return Ring() if workers > 1 else Local()
    if isinstance(asked, Async | Sync) and not servers:
        word = type(asked).__name__.lower()
        raise ConfigError(
            "mode",
            f"a cluster with at least one ps task for {word}",
            "no ps task",
            "add --ps 1 or --ps_hosts",
        )
    if isinstance(asked, Ring) and servers:
        raise ConfigError("mode", "no ps task for ring", f"{servers} ps tasks", "leave the servers out")
    asked.check(workers)
    return asked
