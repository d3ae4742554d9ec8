"""How many tasks this machine can hold at most, so that what cannot work is refused before anything starts.

Rough on purpose: a number that is refused surely does not fit; one that is not refused may still be too many.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Iterable
from pathlib import Path

from argosy.errors import ConfigError

# Of the launcher, for each task: a port, memory that outlives it, two pipes, a log.
_FILES_EACH, _FILES_SPARE = 5, 64
# A task has several: ZeroMQ's, torch's, those that write checkpoints.
_THREADS_EACH = 4
# What a task has of its own as soon as it runs, whatever it shares with the others.
_BYTES_EACH = 32 * 2**20


def check_room(tasks: int) -> None:
    """Raise ConfigError if this machine cannot hold so many tasks."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most, why = most_tasks(_or_infinite(files), _threads(), _free_bytes())
    if tasks > most:
        raise ConfigError("--ps and --workers", f"at most {most} tasks on this machine ({why})", tasks)


def most_tasks(files: float, threads: float, free_bytes: float) -> tuple[float, str]:
    """How many fit, and what limits them."""
    limits = [
        ((files - _FILES_SPARE) // _FILES_EACH, f"the launcher may open {files} files: see `ulimit -n`"),
        (threads // _THREADS_EACH, f"there may be {threads} processes and threads"),
        (
            free_bytes // _BYTES_EACH,
            f"{free_bytes / 1e9:.1f} GB of memory are free, and a task takes {_BYTES_EACH >> 20} MB or more",
        ),
    ]
    most, why = min(limits)
    return max(1, most), why


def _threads() -> float:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    found = _numbers("/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max", "/sys/fs/cgroup/pids.max")
    return min([_or_infinite(allowed), *found])


def _free_bytes() -> float:
    free = math.inf
    for line in _lines("/proc/meminfo"):
        name, _, value = line.partition(":")
        if name in ("MemAvailable", "SwapFree"):
            free = int(value.split()[0]) * 1024 + (0 if free == math.inf else free)
    return min([free, *_numbers("/sys/fs/cgroup/memory.max")])


def _or_infinite(limit: int) -> float:
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _numbers(*paths: str) -> Iterable[int]:
    """What these files say, but for those that are not there or say "max"."""
    return [int(line) for path in paths for line in _lines(path)[:1] if line.strip().isdigit()]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
