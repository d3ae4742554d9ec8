"""Remote work: what a client says to the tasks that it drives, what they answer, and what they say to each
other.

A *client* talks to every task, a task back to the client, and a task to another when a tensor travels.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

from argosy.protocol.fields import HeaderBase

REMOTE_VERSION = 2

_Id = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Name = Annotated[str, msgspec.Meta(max_length=256)]
_Extent = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_Extents = Annotated[tuple[_Extent, ...], msgspec.Meta(max_length=64)]


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """Why an operation has no result: where it ran, what it was, the client's line, the task's own words,
    and its number among the errors of that task's session.
    """

    task: _Name
    operation: str
    site: int
    kind: str
    message: str
    trace: str = ""
    lost: bool = False
    number: int = -1


class Packing(msgspec.Struct, frozen=True, array_like=True):
    """How a tensor lies in its frames, which are raw bytes."""

    dtype: _Name
    shape: _Extents
    stride: _Extents


class Attach(HeaderBase, frozen=True, tag="attach"):
    """A client wants this task's devices. The first message on its channel."""

    client: _Name
    protocol: int = REMOTE_VERSION


class Attached(HeaderBase, frozen=True, tag="attached"):
    """You may send work. The cluster as this task knows it, and its devices."""

    task: _Name
    cluster: dict[str, list[str]]
    devices: tuple[_Name, ...]
    pid: int


class Work(HeaderBase, frozen=True, tag="work"):
    """Operations, in the order in which they were made; `remote/records.py` says what each is.

    Frames: the bytes of the tensors that the records bring.
    """

    records: list[Any]


class Reply(HeaderBase, frozen=True, tag="reply"):
    """What was asked for: one result a value. Frames: the bytes of the tensors."""

    request: _Id
    results: list[Any] = msgspec.field(default_factory=list)
    fault: Fault | None = None


class CutOff(HeaderBase, frozen=True, tag="cut_off"):
    """From a task to a client: nothing more is done for you here, for this reason."""

    reason: str


class Item(msgspec.Struct, frozen=True, array_like=True):
    """A value in a parcel: its number where it goes, its turn, and how its bytes lie or why there are
    none.
    """

    value: _Id
    turn: _Id
    packing: Packing | None = None
    fault: Fault | None = None


class Parcel(HeaderBase, frozen=True, tag="parcel"):
    """From task to task: values that a client's records have told you to expect. Frames: their bytes."""

    client: _Name
    items: tuple[Item, ...]


class TaskGone(HeaderBase, frozen=True, tag="bereft"):
    """From a client: this task has gone, so what you expect from it will not come."""

    task: _Name


class Detach(HeaderBase, frozen=True, tag="detach"):
    """A client goes: forget all that is its own."""


RemoteWork: TypeAlias = Attach | Attached | Work | Reply | Parcel | TaskGone | CutOff | Detach
