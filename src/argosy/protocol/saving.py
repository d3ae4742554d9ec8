"""Saving and resuming: where checkpoints are kept, from which one to go on, whose file is written."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from argosy.protocol.fields import Count, Group, HeaderBase


class OpenDirectory(HeaderBase, frozen=True, tag="open"):
    """From the chief, before it registers: checkpoints are kept in this directory, the newest `keep`."""

    directory: str
    keep: Annotated[int, msgspec.Meta(ge=1)]
    number: Count = 0


class DirectoryOpened(HeaderBase, frozen=True, tag="opened"):
    """It is mine. `checkpoint`: the one to go on from. `again`: the job runs already. `notes`: for people."""

    checkpoint: str = ""
    step: Count = 0
    notes: tuple[str, ...] = ()
    again: bool = False
    number: Count = 0


class CarriedState(msgspec.Struct, frozen=True, array_like=True):
    """A worker's own state before a turn, as it travels with the push of that turn.

    `parts`: what has changed since the push before, each encoded by the worker. `gathers`: how many it had
    taken part in. `turns`: of those after this state, how many are decided.
    """

    parts: dict[str, bytes]
    gathers: Count = 0
    turns: Count = 0


class ResumeRequest(HeaderBase, frozen=True, tag="resume?"):
    """From where do I go on?"""

    number: Count = 0


class ResumePoint(HeaderBase, frozen=True, tag="resume"):
    """From this step, with this state of your own, and these hyperparameters if they were saved.

    `carried`: you take the place of a process that has made turns in this job; go on from what it gave last.
    """

    step: Count
    state: bytes = b""
    groups: tuple[Group, ...] | None = None
    number: Count = 0
    carried: CarriedState | None = None


class OwnState(HeaderBase, frozen=True, tag="state"):
    """My own state (random generators, position in my data): what I need to go on from here, at `step`."""

    state: bytes
    step: Count = 0


class ShardFile(msgspec.Struct, frozen=True):
    """A file of tensors of a checkpoint."""

    file: str
    bytes: int
    sha256: str


class ShardSaved(HeaderBase, frozen=True, tag="saved"):
    """Between servers: my file of this cut is on the disk, or could not be written."""

    step: Count
    file: ShardFile | None = None
    error: str = ""


Saving: TypeAlias = OpenDirectory | DirectoryOpened | ResumeRequest | ResumePoint | OwnState
