"""A model's buffers in the rounds of the ring: what a worker brings of them, and what everybody gets.

"chief": rank 0's, as they are. "mean": what each worker has brought last, with a gradient of its own, counts;
who skips brings nothing anew. It lies where the worker put it, or in a copy if the rounds sum in that place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import torch

from argosy.replica.ring_items import Places, buffers_at
from argosy.ring.device_rounds import DeviceRounds
from argosy.ring.notes import ABSENT
from argosy.ring.rounds import Rounds
from argosy.torch_private import foreach_copy_

# By the module that a buffer is of, and its name there.
Brought: TypeAlias = Mapping[tuple[int, str], torch.Tensor]
NOTHING: Brought = MappingProxyType({})


class RingBuffers:
    """The buffers at these places, in the buckets from number `begins` on, as items from `first` on.

    `given` and `results`: where each bucket's pieces lie. `brought`: what this worker brought last before.
    """

    def __init__(
        self,
        rounds: Rounds | DeviceRounds,
        places: Places,
        begins: int,
        first: int,
        given: Sequence[list[torch.Tensor]],
        results: Sequence[list[torch.Tensor]],
        brought: Brought = NOTHING,
    ) -> None:
        self._rounds = rounds
        self._places = places
        self._first = first
        self._given = given
        self._results = results
        self._numbers = range(begins, len(rounds.buckets))
        self._follows = {number: rounds.buckets[number].rule != "first" for number in self._numbers}
        self._copies: dict[int, list[torch.Tensor]] = {}  # of what was brought last, if its place is not kept
        self._has_brought = bool(brought)
        if brought:
            now = zip(self._keys(), buffers_at(places), strict=True)
            last = [brought.get(key, buffer) for key, buffer in now]
            for number in self._numbers:
                self._put(number, last)

    def _keys(self) -> list[tuple[int, str]]:
        return [(id(module), name) for module, name in self._places if getattr(module, name) is not None]

    def brought(self) -> Brought:
        """A copy of what this worker has brought last, for rounds of other buckets."""
        if not self._has_brought:
            return NOTHING
        keys, found = self._keys(), {}
        for number in self._numbers:
            kept = self._copies.get(number, self._given[number])
            for piece, value in zip(self._rounds.buckets[number].pieces, kept, strict=True):
                found[keys[piece.item - self._first]] = value.clone()
        return found

    def enter(self, brings: bool, counts: bool) -> None:
        """Enter all buckets. `brings`: the buffers as they are; `counts`: whether this worker trains on."""
        if not self._numbers:
            return
        state = buffers_at(self._places)
        self._has_brought |= brings
        for number in self._numbers:
            if brings or not self._follows[number]:
                self._put(number, state)
            elif number in self._copies:
                foreach_copy_(self._given[number], self._copies[number])
            absent = self._follows[number] and not (counts and self._has_brought)
            self._rounds.enter([ABSENT] * len(self._given[number]) if absent else None)

    def _put(self, number: int, state: Sequence[torch.Tensor]) -> None:
        values = self._of_bucket(number, state)
        foreach_copy_(self._given[number], values)
        if self._follows[number] and not self._rounds.keeps_given:
            self._copies[number] = [value.clone() for value in values]

    def take_back(self) -> None:
        """They are this worker's own again, as it has brought them to the last round."""
        if not self._has_brought:
            return
        state = buffers_at(self._places)
        for number in self._numbers:
            if self._follows[number]:
                foreach_copy_(self._of_bucket(number, state), self._copies.get(number, self._given[number]))

    def take(self, number: int) -> None:
        """The result of a bucket, into the buffers that it is of."""
        foreach_copy_(self._of_bucket(number, buffers_at(self._places)), self._results[number])

    def _of_bucket(self, number: int, state: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Those of all buffers that a bucket is of."""
        return [state[piece.item - self._first] for piece in self._rounds.buckets[number].pieces]
