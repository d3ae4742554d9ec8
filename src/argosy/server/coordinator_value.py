"""What the coordinator leaves to the next process of its server, as plain data."""

from __future__ import annotations

import msgspec

from argosy.protocol.joining import JobOver
from argosy.server.replica_states import Standing
from argosy.server.tally import Counts
from argosy.update.coordination import CoordinationValue


class CoordinatorValue(msgspec.Struct, array_like=True):
    """All that the coordinator knows, but for the model and the checkpoints, as plain data."""

    core: CoordinationValue
    described: list[int]
    norms: tuple[dict[int, dict[int, float]], int] | None
    tally: list[Counts]
    failure: JobOver | None
    states: dict[int, Standing]
    gather_bases: dict[int, int]
