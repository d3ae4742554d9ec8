"""The lease: how long a task may be out of reach before it counts as gone. Every other time follows from it.

A process keeps its lease without the help of its script: ZeroMQ's own thread answers heartbeats, and inside
a host the kernel knows whether a process has ended or stands still. So a process that computes for an hour
keeps its lease, and one that is dead, stopped or cut off loses it.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_LEASE = 15.0


@dataclass(frozen=True)
class Lease:
    """Of `seconds`, and what follows from that."""

    seconds: float = DEFAULT_LEASE

    @property
    def heartbeat(self) -> float:
        """How often a connection is tried that has nothing else to carry."""
        return self.seconds / 10

    @property
    def heartbeat_limit(self) -> float:
        """A connection without a sign of life for so long is made anew: well within the lease."""
        return self.seconds / 3

    @property
    def reconnect(self) -> float:
        """An attempt to connect is given up and made again after so long: the first packets may be lost."""
        return self.seconds / 10

    @property
    def last_words(self) -> float:
        """How long to listen for the reason when a process is known to have ended."""
        return self.seconds / 5
