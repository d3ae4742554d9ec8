"""Fixtures of all tests. Not seen by mypy, which cannot have two modules of this name: leaks.py is."""

import os
import signal

from leaks import nothing_is_left, own_temporary_directory  # noqa: F401

# Tests run beside each other, and threads of torch that wait for a core spin: each process has one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts us in the background has SIGINT ignored, and what we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So does nohup with SIGHUP.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
