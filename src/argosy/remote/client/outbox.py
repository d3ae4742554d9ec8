"""A client's way to one task: a batch of records that grows until it is sent.

Any thread of the client may add; the client's lock keeps records whole and in order. A batch leaves when it
is large, when somebody waits for a value, or a moment later by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from argosy.errors import TaskLost
from argosy.protocol.remote_work import Work
from argosy.remote.operations.instructions import DROP

if TYPE_CHECKING:
    from argosy.remote.client.connections import Link

# So many items make a batch: about a hundred and fifty operations, small enough to keep a task busy
# meanwhile.
LARGE = 1000
_LARGE_BYTES = 4 * 2**20


class Post:
    """The records for one task that have not been sent yet."""

    def __init__(self, name: str, link: Link) -> None:
        self.name = name
        self._link = link
        self.batch: list[Any] = []
        self.frames: list[torch.Tensor] = []
        self._bytes = 0
        self.dropped: deque[int] = deque()
        # What is no longer needed of captured steps; and what is sent while one is recorded.
        self.retired: deque[tuple[int, int]] = deque()
        self.tape: list[list[Any]] | None = None
        self.gone: set[int] | None = None  # what was dropped since a recording began, until its plan is made
        self.lost: str = ""

    def attach_frames(self, frames: Sequence[torch.Tensor]) -> int:
        """Tensors that go with the batch; the number of the first. Under the client's lock."""
        first = len(self.frames)
        self.frames += frames
        self._bytes += sum(frame.numel() for frame in frames)
        return first

    @property
    def full(self) -> bool:
        """Whether it is time to send."""
        return len(self.batch) > LARGE or self._bytes > _LARGE_BYTES

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send."""
        return not self.batch and not self.dropped

    def flush(self) -> None:
        """Send what there is. Under the client's lock."""
        if self.idle:
            return
        batch, self.batch = self.batch, []
        frames, self.frames = self.frames, []
        self._bytes = 0
        while self.retired:
            batch += self.retired.popleft()
        if self.dropped:
            # Appended to from any thread at any moment (by the garbage collector): taken one by one.
            dropped = [self.dropped.popleft() for _ in range(len(self.dropped))]
            batch += (DROP, dropped)
            if self.gone is not None:
                self.gone.update(dropped)
        if self.tape is not None:
            self.tape.append(batch)
        if not self.lost:
            self._link.work(self.name, Work(batch), frames)

    def check(self) -> None:
        """A task that has gone takes no more work."""
        if self.lost:
            raise TaskLost(self.name, self.lost)
