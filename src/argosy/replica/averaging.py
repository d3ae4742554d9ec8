"""Gradients averaged over all workers: sent while backward goes on, and taken when it is over.

A hook on each parameter notes that its gradient is there; a bucket whose gradients are all there is copied
into shared memory and summed while backward goes on. The exchange says when a round begins, and what for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from argosy.errors import ArgosyError
from argosy.modes import BufferRule
from argosy.replica.ring_buffers import NOTHING, Brought, RingBuffers
from argosy.replica.ring_items import (
    Places,
    buffer_buckets,
    buffers_at,
    cut,
    device_of,
    gradient_of,
    item_of,
    views,
)
from argosy.replica.sparse_marks import from_marked, kind_of, to_marked
from argosy.ring.buckets import BUCKET_BYTES, BucketPiece, fill
from argosy.ring.member import RingMember
from argosy.ring.notes import ABSENT, DENSE, RoundOutcome, Says
from argosy.torch_private import at_end_of_backward, foreach_copy_, graph_task


class Averaging:
    """The rounds of these parameters, and of the buffers at these places.

    `on_pass` is called at the first gradient of a backward pass, and may call `begin_pass`; `on_end` when
    that pass is over, with what its round came to. `brought`: the buffers that this worker brought last to
    the rounds before.
    """

    def __init__(
        self,
        member: RingMember,
        parameters: Sequence[nn.Parameter],
        places: Places,
        rule: BufferRule,
        wire: torch.dtype | None,
        on_pass: Callable[[], None] | None,
        on_end: Callable[[RoundOutcome], None],
        brought: Brought = NOTHING,
    ) -> None:
        self._member = member
        self._parameters = parameters
        self._on_pass = on_pass
        self._on_end = on_end
        items = [item_of(parameter) for parameter in parameters]
        buckets = fill(items, BUCKET_BYTES)
        state = buffer_buckets(buffers_at(places), len(items), rule)
        self.rounds = member.open_rounds([*buckets, *state], wire, device_of(parameters))
        self._of_gradients = len(buckets)
        self._buckets_of: dict[int, list[int]] = {}
        for place, bucket in enumerate(buckets):
            for piece in bucket.pieces:
                self._buckets_of.setdefault(piece.item, []).append(place)
        every, tensors = self.rounds.buckets, [*parameters, *buffers_at(places)]
        self._given = [views(each, self.rounds.given(n), tensors) for n, each in enumerate(every)]
        self._results = [views(each, self.rounds.result(n), tensors) for n, each in enumerate(every)]
        self.buffers = RingBuffers(
            self.rounds, places, len(buckets), len(items), self._given, self._results, brought
        )
        self._begins = list(accumulate((len(each.pieces) for each in every), initial=0))
        self._under_way = False
        self._backward = -1
        self._marked: dict[
            int, torch.Tensor
        ] = {}  # sparse gradients that are sent or taken in several pieces
        self._handles: list[RemovableHandle] = []
        self._put_hooks()

    # --- during backward ----------------------------------------------------------------------------------
    def follow(self) -> None:
        """Parameters may have been frozen or thawed."""
        if [parameter.requires_grad for parameter in self._parameters] != self._trains:
            self._take_hooks_off()
            self._put_hooks()

    def _put_hooks(self) -> None:
        self._trains = [parameter.requires_grad for parameter in self._parameters]
        self._hooked = [0] * self._of_gradients
        if self._on_pass is None:
            return
        for number, parameter in enumerate(self._parameters):
            if parameter.requires_grad:
                for bucket in self._buckets_of[number]:
                    self._hooked[bucket] += 1
                hook = self._hook(number, self._on_pass)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def _take_hooks_off(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, number: int, on_pass: Callable[[], None]) -> Callable[[torch.Tensor], None]:
        buckets = self._buckets_of[number]

        def arrived(_: torch.Tensor) -> None:
            task = graph_task()
            if task != self._backward or not self._under_way:
                on_pass()
                if task != self._backward or not self._under_way:  # not to be averaged, or this is replaced
                    return
            if number in self._seen:
                if buckets[0] < self.rounds.entered:
                    raise ArgosyError(
                        "a parameter got a second gradient in one pass, after the first was averaged; "
                        "pass overlap=False to distribute()"
                    )
                return
            self._seen.add(number)
            for bucket in buckets:
                self._missing[bucket] -= 1
            if not self._missing[buckets[0]]:
                self._send_full_ones()

        return arrived

    @property
    def under_way(self) -> bool:
        """Whether a round has begun and not ended: the backward pass that began it was broken off."""
        return self._under_way

    def begin_pass(self, mark: Callable[[], int]) -> None:
        """A backward pass gives to a new round, or goes on with one that was broken off."""
        self._backward = graph_task()
        self._seen: set[int] = set()
        self._missing = list(self._hooked)
        if [parameter.requires_grad for parameter in self._parameters] != self._trains:
            self._missing = [-1] * len(self._hooked)  # hooks are not up to date: all leave at the end
        if not self._under_way:  # else what the last one has sent holds
            self.begin(Says.GIVES, mark())
        at_end_of_backward(lambda: self._on_end(self.end()))

    @torch.no_grad()
    def _send_full_ones(self) -> None:
        """Buckets leave in order, so that all workers send the same one."""
        rounds = self.rounds
        while rounds.entered < self._of_gradients and not self._missing[rounds.entered]:
            self._send(rounds.entered)
        rounds.advance()

    # --- a round ------------------------------------------------------------------------------------------
    def begin(self, says: Says, mark: int, ends: bool = False) -> None:
        """A round begins; `ends`: the second one of a step, to which nobody brings buffers anew."""
        self._under_way = True
        self._gives = says == Says.GIVES
        self._brings = self._gives and not ends
        self._is_done = says == Says.IS_DONE
        self.rounds.begin(says, mark, self._member.take_wishes())

    @torch.no_grad()
    def end(self, takes: bool = True) -> RoundOutcome:
        """Send what is left, wait for the others, and take the result; `takes`: also into the gradients."""
        rounds = self.rounds
        while rounds.entered < self._of_gradients:
            if self._gives:
                self._send(rounds.entered)
            else:
                rounds.enter()
        self.buffers.enter(self._brings, not self._is_done)
        outcome = rounds.finish(self._take if takes else self._take_buffers)
        self._under_way = False
        return outcome

    def _send(self, bucket: int) -> None:
        """Copy the gradients of a bucket into their place; an absent one is -0.0, and said to be absent."""
        views, dense, kinds = self._given[bucket], [], []
        for piece in self.rounds.buckets[bucket].pieces:
            gradient = self._parameters[piece.item].grad
            if gradient is None:
                kinds.append(ABSENT)
            elif gradient.layout == torch.strided:
                kinds.append(DENSE)
                dense.append(cut(gradient, piece))
            else:
                kinds.append(kind_of(gradient))
                dense.append(cut(self._whole(gradient, piece), piece))
        if len(dense) == len(views):
            foreach_copy_(views, dense)
            self.rounds.enter(None if kinds.count(DENSE) == len(kinds) else kinds)
            return
        there = [view for view, kind in zip(views, kinds, strict=True) if kind != ABSENT]
        if dense:
            foreach_copy_(there, dense)
        for view, kind in zip(views, kinds, strict=True):
            if kind == ABSENT:
                view.fill_(-0.0)
        self.rounds.enter(kinds)

    def _whole(self, gradient: torch.Tensor, piece: BucketPiece) -> torch.Tensor:
        """A gradient that is not strided, made dense once for all of its pieces."""
        if piece.whole:
            return to_marked(gradient)
        if piece.begin == 0:
            self._marked[piece.item] = to_marked(gradient)
        last = piece.end == gradient.numel()
        return self._marked.pop(piece.item) if last else self._marked[piece.item]

    def _take(self, number: int, outcome: RoundOutcome) -> None:
        """The result of a bucket, into the gradients or buffers that it is of."""
        if number >= self._of_gradients:
            self._take_buffers(number, outcome)
            return
        kinds = None
        if outcome.pieces is not None:
            kinds = outcome.pieces[self._begins[number] : self._begins[number + 1]]
        self._put(number, self._results[number], kinds)

    def _put(self, number: int, sources: Sequence[torch.Tensor], kinds: Sequence[int] | None) -> None:
        """What lies in a bucket, into the gradients that it is of; an absent one is left as it is."""
        targets, taken = [], []
        for place, piece in enumerate(self.rounds.buckets[number].pieces):
            kind = DENSE if kinds is None else kinds[place]
            if kind == DENSE:
                targets.append(cut(gradient_of(self._parameters[piece.item], piece.whole), piece))
                taken.append(sources[place])
            elif kind != ABSENT:
                self._put_sparse(piece, sources[place], kind)
        if targets:
            foreach_copy_(targets, taken)

    def _put_sparse(self, piece: BucketPiece, source: torch.Tensor, kind: int) -> None:
        parameter = self._parameters[piece.item]
        if piece.whole:
            parameter.grad = from_marked(source, kind)
            return
        if piece.begin == 0:
            self._marked[piece.item] = torch.empty_like(parameter, memory_format=torch.contiguous_format)
        cut(self._marked[piece.item], piece).copy_(source)
        if piece.end == parameter.numel():
            parameter.grad = from_marked(self._marked.pop(piece.item), kind)

    def _take_buffers(self, number: int, outcome: RoundOutcome) -> None:
        if number >= self._of_gradients:
            self.buffers.take(number)

    @torch.no_grad()
    def take_back(self) -> None:
        """The gradients are this worker's own again, as they were before the last round.

        On a device what was given is gone, and the mean stays: the mean of means is the mean.
        """
        self.buffers.take_back()
        if not self.rounds.keeps_given:
            return
        absent = set()
        for number in range(self._of_gradients):
            kinds = self.rounds.kinds(number)
            self._put(number, self._given[number], kinds)
            pieces = self.rounds.buckets[number].pieces
            absent |= {p.item for p, kind in zip(pieces, kinds, strict=True) if kind == ABSENT}
        for item in absent:
            self._parameters[item].grad = None

    def close(self) -> None:
        """Take the hooks off, and leave the rounds."""
        self._take_hooks_off()
        self._under_way = False
        self.rounds.close()
