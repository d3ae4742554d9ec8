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


class Numbered(HeaderBase, frozen=True, tag="n"):
    """What one server tells another: each link counts from 1."""

    number: Count
    header: BetweenServers


class SentCount(HeaderBase, frozen=True, tag="told"):
    """So many numbered messages have gone along this link, once a second: none of them may be missing."""

    sent: Count


Header: TypeAlias = Joining | Training | Saving | Asking | RemoteWork | Numbered | SentCount
