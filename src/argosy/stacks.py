"""What a process is doing now: the Python stacks of its threads, for those who ask why a job is stuck."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import FrameType

from argosy.events import say

_DEEPEST = 40  # frames of one thread; the innermost tell


def format_stacks() -> str:
    """Of every thread but the caller's, the main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    parts = []
    for ident in sorted(frames, key=lambda ident: (ident != main, ident)):
        lines = traceback.format_list(traceback.extract_stack(frames[ident])[-_DEEPEST:])
        parts.append(f"{names.get(ident, 'a thread of C code')}:\n{''.join(lines)}")
    return "".join(parts)


def report_on_signal(lines: Callable[[], Sequence[str]]) -> None:
    """SIGUSR1 prints all stacks, even of a process that is stuck in C code, and then these lines.

    Only where the program has no handler of its own, and only in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL:
        return

    def tell(number: int, frame: FrameType | None) -> None:
        for line in lines():
            say(line)

    signal.signal(signal.SIGUSR1, tell)
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)
