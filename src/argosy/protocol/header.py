"""Every header that travels. What msgspec cannot decode into one of these is not a message.

A header's docstring says which frames follow it, if any.
"""

from __future__ import annotations

from typing import TypeAlias

from argosy.protocol.asking import StatusReport, StatusRequest, WaitingReport, WaitingRequest
from argosy.protocol.fields import Count, HeaderBase
from argosy.protocol.joining import (
    Admitted,
    Describe,
    Described,
    Fail,
    GradientMemory,
    GradientMemorySeen,
    Hello,
    JobOver,
    Known,
    Leave,
    Left,
    Refused,
    Register,
    Registered,
    SlotValues,
    Welcome,
)
from argosy.protocol.remote_work import Attach, Attached, Bereft, CutOff, Detach, Parcel, Reply, Work
from argosy.protocol.saving import (
    DirectoryOpened,
    OpenDirectory,
    OwnState,
    ResumePoint,
    ResumeRequest,
    ShardSaved,
)
from argosy.protocol.training import (
    BlockAhead,
    Gathered,
    GatherRequest,
    HeldNotice,
    NormReport,
    Orders,
    PushAnswer,
    PushRequest,
    Scale,
    StopRequest,
)

BetweenServers: TypeAlias = (
    Admitted | HeldNotice | Orders | NormReport | ShardSaved | StopRequest | Scale | Fail | JobOver
)


class Numbered(HeaderBase, frozen=True, tag="n"):
    """What one server tells another: each link counts from 1."""

    number: Count
    header: BetweenServers


class SentCount(HeaderBase, frozen=True, tag="told"):
    """So many numbered messages have gone along this link, once a second: none of them may be missing."""

    sent: Count


Joining: TypeAlias = (
    Hello
    | Welcome
    | Refused
    | Known
    | Describe
    | Described
    | Register
    | Registered
    | GradientMemory
    | GradientMemorySeen
    | SlotValues
    | Leave
    | Left
    | Fail
    | JobOver
)
Training: TypeAlias = PushRequest | BlockAhead | PushAnswer | GatherRequest | Gathered | Numbered | SentCount
Saving: TypeAlias = OpenDirectory | DirectoryOpened | ResumeRequest | ResumePoint | OwnState
Asking: TypeAlias = StatusRequest | StatusReport | WaitingRequest | WaitingReport
RemoteWork: TypeAlias = Attach | Attached | Work | Reply | Parcel | Bereft | CutOff | Detach
Header: TypeAlias = Joining | Training | Saving | Asking | RemoteWork
