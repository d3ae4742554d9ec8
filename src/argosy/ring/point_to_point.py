"""From one rank to another: a ring of just these two for each direction and tag, made when it is first used.

Each has a thread of its own, so that two ranks that both send before they receive do not wait for each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed import PrefixStore, Store

from argosy.ring.flats import Flats
from argosy.ring.group import Membership, RingGroup
from argosy.ring.runner import Runner

# How long the last ones that were sent may take to arrive when the group is left, in seconds.
_PATIENCE = 5.0


class PointToPoint:
    """What one rank sends to others, and receives from them."""

    def __init__(self, store: Store, member: Membership) -> None:
        self._store = store
        self._member = member
        self._pairs: dict[tuple[int, int, int], _Pair] = {}

    def send(self, tensors: Sequence[torch.Tensor], to: int, tag: int) -> Any:
        """A torch Work."""
        return self._pair(self._member.rank, to, tag).move("send", tensors)

    def receive(self, tensors: Sequence[torch.Tensor], source: int, tag: int) -> Any:
        """A torch Work."""
        return self._pair(source, self._member.rank, tag).move("recv", tensors)

    def _pair(self, source: int, to: int, tag: int) -> _Pair:
        key = (source, to, tag)
        if key not in self._pairs:
            store = PrefixStore(f"{source}-{to}-{tag}", self._store)
            names = (self._member.names[source], self._member.names[to])
            place = 0 if source == self._member.rank else 1
            self._pairs[key] = _Pair(store, replace(self._member, rank=place, names=names))
        return self._pairs[key]

    def close(self) -> None:
        """Let what was sent arrive, and end."""
        for pair in self._pairs.values():
            pair.close()
        self._pairs = {}


class _Pair:
    """From the first of two ranks to the second."""

    def __init__(self, store: Store, member: Membership) -> None:
        self._store = store
        self._member = member
        self._pair: RingGroup | None = None
        self._made = 0
        self._runner = Runner(self, (member.names[1 - member.rank],))

    def move(self, name: str, tensors: Sequence[torch.Tensor]) -> Any:
        def work() -> None:
            with Flats(tensors, written=self._member.rank == 1) as flat:
                pair = self._meet()
                for each in flat:
                    pair.broadcast(each, 0, "send and recv")

        return self._runner.run(name, work, list(tensors), None)

    def _meet(self) -> RingGroup:
        """In the pair's thread: the other rank may come much later."""
        if self._pair is None:
            self._made += 1
            self._pair = RingGroup(self._store, self._member, quiet=True)
        return self._pair

    # --- as the runner asks -------------------------------------------------------------------------------
    @property
    def turns(self) -> int:
        """How much was begun."""
        return self._made + (0 if self._pair is None else self._pair.turns)

    def refuse(self, name: str, reason: str) -> None:
        """Have what the other rank sends or receives next fail."""
        self._meet().refuse(name, reason)

    def fail(self, reason: str) -> None:
        """Tell the other rank, if it was ever met."""
        if self._pair is not None:
            self._pair.fail(reason)

    def close(self) -> None:
        # What nobody ever receives must not hold up the end.
        if self._runner.close(_PATIENCE) and self._pair is not None:
            self._pair.close()
