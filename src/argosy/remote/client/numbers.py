"""The numbers that a client gives: to values, to captured steps; and what is kept while a step is
recorded.
"""

from __future__ import annotations

import threading
from typing import Any

from argosy.remote.client.outbox import Post


class Numbers:
    """The part of a client that knows no network."""

    def __init__(self) -> None:
        # Whoever takes a number or adds a record holds it: records must be whole, and in order.
        self.lock = threading.Lock()
        self.number = 0
        self.posts: dict[str, Post] = {}
        self._plan = 0

    def flush(self) -> None:
        """Send all that has not been sent."""
        with self.lock:
            for post in self.posts.values():
                post.flush()

    def take_numbers(self, count: int) -> int:
        """Numbers for new values; the first of them."""
        with self.lock:
            first = self.number
            self.number += count
        return first

    def take_plan(self) -> int:
        """A number for a captured step."""
        with self.lock:
            self._plan += 1
            return self._plan

    def start_tapes(self) -> dict[Post, list[list[Any]]]:
        """From now on, keep what is sent."""
        self.flush()
        with self.lock:
            for post in self.posts.values():
                post.tape = []
                post.gone = set()
        return {post: post.tape for post in self.posts.values() if post.tape is not None}

    def stop_tapes(self) -> None:
        """What was sent until now was kept."""
        self.flush()
        with self.lock:
            for post in self.posts.values():
                post.tape = None

    def alive(self, post: Post, numbers: set[int]) -> set[int]:
        """Those of these values of a recording that somebody still holds."""
        with self.lock:  # what is dropped may be sent at any moment, by another thread
            return numbers - set(post.dropped) - (post.gone or set())

    def end_recording(self) -> None:
        """Whoever asked what is `alive` knows it now."""
        with self.lock:
            for post in self.posts.values():
                post.gone = None

    def post(self, task: str) -> Post:
        """The way to a task."""
        return self.posts[task]
