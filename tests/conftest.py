"""Fixtures of all tests. Not seen by mypy, which cannot have two modules of this name: leaks.py is."""

import signal

from leaks import nothing_is_left, own_temporary_directory  # noqa: F401

# A shell that starts us in the background has SIGINT ignored, and what we start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
