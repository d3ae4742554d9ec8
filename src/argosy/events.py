"""What a task tells a person: one line at a time, on standard error, whole.

A leaf that any part may import. Standard output belongs to the user's program.
"""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Tell it now. One write, so that lines of several processes on one terminal do not mix."""
    sys.stderr.write(f"argosy: {line}\n")
    sys.stderr.flush()


def say_waiting(who: str, seconds: float) -> None:
    """The line of everybody who waits."""
    say(f"still waiting for {who}, {seconds:.0f} s")
