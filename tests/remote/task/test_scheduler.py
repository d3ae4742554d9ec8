"""Steps and the threads that take them."""

from __future__ import annotations

import threading

import pytest

from argosy.remote.task.scheduler import Scheduler, WorkItem


def test_what_a_helper_cannot_do_is_raised_in_the_sessions_thread() -> None:
    scheduler, looked = Scheduler(helpers=1), threading.Event()
    scheduler.on_ready = looked.set

    def wrong() -> None:
        raise ValueError("a mistake of ours")

    try:
        for _ in range(2):  # one is left to whoever takes; with two a helper is called
            assert not scheduler.add(WorkItem(wrong, heavy=True), [], [])
        assert looked.wait(10)
        with pytest.raises(ValueError, match="a mistake of ours"):
            scheduler.take()
        assert scheduler.unfinished == 2  # nothing that waits for it is let go
    finally:
        scheduler.close()
