"""Every header that travels. What msgspec cannot decode into one of these is not a message.

A header's docstring says which frames follow it, if any.
"""

from __future__ import annotations

from typing import TypeAlias

from argosy.protocol.asking import Asking
from argosy.protocol.fields import Count, HeaderBase
from argosy.protocol.joining import Admitted, Fail, JobOver, Joining
from argosy.protocol.remote_work import RemoteWork
from argosy.protocol.saving import Saving, ShardSaved
from argosy.protocol.training import Training, TrainingOfServers

BetweenServers: TypeAlias = Admitted | TrainingOfServers | ShardSaved | Fail | JobOver


class LogEntry(HeaderBase, frozen=True, tag="n"):
    """What one server tells another, at its place in the sender's log; `epoch` is the life of that log."""

    epoch: Count
    index: Count
    entry: BetweenServers


class LogState(HeaderBase, frozen=True, tag="log"):
    """How far a server is, once a second and whenever something may have been lost: `last` is the latest
    entry of its own log, and of the receiver's log it has taken every entry up to `taken`. `again`: send me
    those after it.
    """

    epoch: Count
    last: Count
    taken: Count
    again: bool = False


Header: TypeAlias = Joining | Training | Saving | Asking | RemoteWork | LogEntry | LogState
