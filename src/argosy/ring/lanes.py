"""From one rank to another: a ring of just these two for each direction and tag, made when it is first used.

Each has a thread of its own, so that two ranks that both send before they receive do not wait for each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from argosy.ring.flats import Flats
from argosy.ring.group import Membership, RingGroup
from argosy.ring.runner import Runner

# How long the last ones that were sent may take to arrive when the group is left, in seconds.
_PATIENCE = 5.0


class Lanes:
    """One rank's lanes."""

    def __init__(self, store: Store, member: Membership) -> None:
        self._store = store
        self._member = member
        self._lanes: dict[tuple[int, int, int], _Lane] = {}

    def send(self, tensors: Sequence[torch.Tensor], to: int, tag: int) -> Any:
        """A torch Work."""
        return self._lane(self._member.rank, to, tag).move(tensors)

    def receive(self, tensors: Sequence[torch.Tensor], source: int, tag: int) -> Any:
        """A torch Work."""
        return self._lane(source, self._member.rank, tag).move(tensors)

    def _lane(self, source: int, to: int, tag: int) -> _Lane:
        key = (source, to, tag)
        if key not in self._lanes:
            store = PrefixStore(f"{source}-{to}-{tag}", self._store)
            names = (self._member.names[source], self._member.names[to])
            place = 0 if source == self._member.rank else 1
            self._lanes[key] = _Lane(store, replace(self._member, rank=place, names=names))
        return self._lanes[key]

    def close(self) -> None:
        """Let what was sent arrive, and end."""
        for lane in self._lanes.values():
            lane.close()
        self._lanes = {}


class _Lane:
    """From the first of two ranks to the second."""

    def __init__(self, store: Store, member: Membership) -> None:
        self._store = store
        self._member = member
        self._pair: RingGroup | None = None
        self._runner = Runner()

    def move(self, tensors: Sequence[torch.Tensor]) -> Any:
        def work() -> None:
            if self._pair is None:  # in the lane's thread: the other one may come much later
                self._pair = RingGroup(self._store, self._member, quiet=True)
            with Flats(tensors) as flat:
                for each in flat:
                    self._pair.broadcast(each, 0)

        return self._runner.run(work, list(tensors), None)

    def close(self) -> None:
        # What nobody ever receives must not hold up the end.
        if self._runner.close(_PATIENCE) and self._pair is not None:
            self._pair.close()
