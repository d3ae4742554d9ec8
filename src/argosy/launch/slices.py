"""How long a process may run before another gets its turn: a wish that Linux heeds since 6.12.

Of two that share a core, the one with the shorter slice goes first when it wakes, and is left alone for as
long as its slice is. Neither gets more of the core for it. Earlier kernels take the wish and ignore it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

# Python and the C library have no function for it.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}.get(platform.machine())
# size, policy, flags, nice, priority, runtime, deadline, period
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def set_slice(pid: int, seconds: float) -> None:
    """Wish a slice for a process of ours, all else as it is. Raises OSError where that is not allowed."""
    if _SCHED_SETATTR is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, pid)
    attributes = _ATTRIBUTES.pack(
        _ATTRIBUTES.size, os.sched_getscheduler(pid), 0, nice, 0, round(seconds * 1e9), 0, 0
    )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SCHED_SETATTR, pid, attributes, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
