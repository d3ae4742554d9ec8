"""What a client has to send to one task: a batch of instructions that grows until it is sent.

Any thread of the client may add; the client's lock keeps instructions whole and in order. A batch leaves when
it is full, when a value is waited for, or after a millisecond.
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
    from argosy.remote.client.connections import Connections

# The entries of a full batch: about 150 operations, few enough that the task has work while the next is made.
FULL = 1000
_FULL_BYTES = 4 * 2**20


class Outbox:
    """The instructions for one task that have not been sent yet."""

    def __init__(self, name: str, connections: Connections) -> None:
        self.name = name
        self._connections = connections
        self.batch: list[Any] = []
        self.frames: list[torch.Tensor] = []
        self._bytes = 0
        self.dropped: deque[int] = deque()
        self.retired: deque[tuple[int, int]] = deque()  # instructions to forget captured steps
        self.tape: list[list[Any]] | None = None  # the batches of a recording
        self.gone: set[int] | None = None  # what was dropped since the recording began
        self.lost: str = ""

    def attach_frames(self, frames: Sequence[torch.Tensor]) -> int:
        """Add tensors to the batch; returns the number of the first. Under the client's lock."""
        first = len(self.frames)
        self.frames += frames
        self._bytes += sum(frame.numel() for frame in frames)
        return first

    @property
    def full(self) -> bool:
        """Whether the batch should be sent."""
        return len(self.batch) > FULL or self._bytes > _FULL_BYTES

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send."""
        return not self.batch and not self.dropped

    def flush(self) -> None:
        """Send the batch. Under the client's lock."""
        if self.idle:
            return
        batch, self.batch = self.batch, []
        frames, self.frames = self.frames, []
        self._bytes = 0
        while self.retired:
            batch += self.retired.popleft()
        if self.dropped:
            # The garbage collector of any thread may append at any moment: taken one by one.
            dropped = [self.dropped.popleft() for _ in range(len(self.dropped))]
            batch += (DROP, dropped)
            if self.gone is not None:
                self.gone.update(dropped)
        if self.tape is not None:
            self.tape.append(batch)
        if not self.lost:
            self._connections.work(self.name, Work(batch), frames)

    def check(self) -> None:
        """Raise TaskLost if the task is lost."""
        if self.lost:
            raise TaskLost(self.name, self.lost)
