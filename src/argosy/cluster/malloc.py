"""What this process's malloc does with memory that a step has freed: keep it for the next one.

Left to itself, glibc gives a block above 32 MB back to the kernel as soon as it is freed, and smaller ones
when enough of them are free. The next step asks for the same blocks, and the kernel hands them out anew, page
by page, filled with zeros: for a gradient of 50 MB that takes ten times as long as to write it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# So much that is free at the heap's end is kept, in bytes; and blocks up to this size lie in the heap. Larger
# ones still go back at once: in a heap, what is freed between two others may be of no use to the next.
_KEPT = 2**30
_LARGEST = 128 * 2**20
# Whoever sets one of these knows what malloc is to do.
_OWN = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> None:
    """From now on; nothing happens where malloc is not glibc's, or the user has tuned it."""
    if any(name in environ for name in _OWN):
        return
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST)
