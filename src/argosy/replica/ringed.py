"""The exchange without servers: gradients are averaged over all workers, and the user's own optimizer steps.

A hook on each parameter notes that its gradient is there; a bucket whose gradients are all there is copied
into shared memory and summed while backward goes on. When backward is over, `.grad` holds the mean of all
workers, so what a user does to it then (clipping, say) is done to the mean, and the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal

import msgspec
import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils.hooks import RemovableHandle

from argosy.errors import ArgosyError
from argosy.replica.exchange import (
    Resumed,
    Training,
    Verdict,
    begin_from,
    names_of,
    parameters_of,
    scale_gradients,
)
from argosy.replica.own_averages import OwnAverages
from argosy.replica.ring_items import (
    buffer_buckets,
    buffer_places,
    check_alike,
    cut,
    device_of,
    gradient_of,
    item_of,
    views,
)
from argosy.replica.ring_saving import RingSaving
from argosy.replica.torch_state import TorchState
from argosy.ring.buckets import BUCKET_BYTES, fill
from argosy.ring.device_rounds import DeviceRounds
from argosy.ring.member import RingMember
from argosy.ring.rounds import Outcome, Rounds


class RingExchange:
    """One worker's exchange with all the others. `overlap`: average during backward, and not in `step`."""

    def __init__(
        self,
        member: RingMember,
        clip_norm: float | None = None,
        wire: torch.dtype | None = None,
        overlap: bool = True,
    ) -> None:
        self._member = member
        self._clip_norm = clip_norm
        self._wire = wire
        self._overlaps = overlap
        self._step = 0
        self._rounds: Rounds | DeviceRounds | None = None
        self._handles: list[RemovableHandle] = []
        self._waits = False  # for further backward passes before the gradients are complete
        self._outcome: Outcome | None = None  # of the round that this step's gradients have been through
        self._under_way = False
        self._backward = -1
        self._saving: RingSaving | None = None
        self._state: TorchState | None = None
        self._stop_at: int | None = None  # told by the chief
        self._averages = OwnAverages((), None)
        self.resumed = Resumed()
        self.keeps_state = False

    # --- beginning ----------------------------------------------------------------------------------------
    def start(self, optimizer: torch.optim.Optimizer, training: Training) -> Verdict:
        """See `Exchange`."""
        self._optimizer = optimizer
        self._training = training
        self._member.on_leaving(self._close)
        self._begin_saving(training)
        self._open()
        if not self.resumed.step:
            self._averages.restart()
        return self.pull()

    def _begin_saving(self, training: Training) -> None:
        """What the training begins from: a checkpoint, a file, or the chief's parameters as they are."""
        parameters = [parameter for _, parameter in parameters_of(self._optimizer)]
        self._averages = OwnAverages(parameters, training.average)
        if training.keeping is None:
            if training.initial is not None and self._member.rank == 0:
                training.initial()
            return
        self._state = state = TorchState(training.model, self._optimizer)
        state.averages = self._averages.values
        member = self._member
        self._saving = RingSaving(
            training, training.keeping, state, member.rank, member.group.size, member.meet
        )
        self.resumed = self._saving.begin()
        begin_from(self._optimizer, training, self.resumed)
        self._step = self.resumed.step

    def extend(self, first: int) -> None:
        """See `Exchange`."""
        if self._state is not None:
            self._state.restore_later(first)
        self._open()
        self._outcome = None
        self._averages.extend(self._parameters)
        if self._state is not None:
            self._state.restore_averages(first)

    def _open(self) -> None:
        """Agree on what is trained, take the chief's values, and make room for the gradients."""
        pairs = parameters_of(self._optimizer)
        self._parameters = [parameter for _, parameter in pairs]
        model = self._training.model
        self._places = buffer_places(model)
        self._check(names_of(model, pairs))
        self._take_the_chiefs()
        items = [item_of(parameter) for parameter in self._parameters]
        buckets = fill(items, BUCKET_BYTES)
        state = buffer_buckets(self._buffers(), len(items), self._training.buffer_rule)
        self._close()
        self._rounds = self._member.open_rounds(
            [*buckets, *state],
            self._wire,
            device_of(self._parameters),
        )
        self._of_gradients = len(buckets)
        self._buckets_of: dict[int, list[int]] = {}
        for place, bucket in enumerate(buckets):
            for piece in bucket.pieces:
                self._buckets_of.setdefault(piece.item, []).append(place)
        every, tensors = self._rounds.buckets, [*self._parameters, *self._buffers()]
        self._given = [views(each, self._rounds.given(n), tensors) for n, each in enumerate(every)]
        self._results = [views(each, self._rounds.result(n), tensors) for n, each in enumerate(every)]
        self._begins = list(accumulate((len(each.pieces) for each in every), initial=0))
        self._put_hooks()

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer for module, name in self._places if (buffer := module._buffers[name]) is not None]

    def _check(self, names: Sequence[str]) -> None:
        """That every worker trains the same model."""
        mine = [
            (name, list(parameter.shape), str(parameter.dtype))
            for name, parameter in zip(names, self._parameters, strict=True)
        ]
        mine += [("buffer", list(buffer.shape), str(buffer.dtype)) for buffer in self._buffers()]
        chiefs = msgspec.msgpack.decode(self._member.meet(msgspec.msgpack.encode(mine))[0])
        check_alike([list(each) for each in mine], chiefs)

    @torch.no_grad()
    def _take_the_chiefs(self) -> None:
        """Parameters, buffers, and what the optimizer leaves alone."""
        trained = {id(parameter) for parameter in self._parameters}
        model = self._training.model
        rest = [] if model is None else [p for p in model.parameters() if id(p) not in trained]
        for tensor in [*self._parameters, *rest, *self._buffers()]:
            flat = tensor.detach().to("cpu", copy=True).contiguous().view(-1)
            self._member.group.broadcast(flat.view(torch.uint8), 0)
            tensor.detach().copy_(flat.view(tensor.shape))

    # --- during backward ----------------------------------------------------------------------------------
    def _put_hooks(self) -> None:
        self._take_hooks_off()
        self._trains = [parameter.requires_grad for parameter in self._parameters]
        self._hooked = [0] * self._of_gradients
        if not self._overlaps:
            return
        for number, parameter in enumerate(self._parameters):
            if parameter.requires_grad:
                for bucket in self._buckets_of[number]:
                    self._hooked[bucket] += 1
                hook = self._hook(number)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def _take_hooks_off(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        buckets = self._buckets_of[number]

        def arrived(_: torch.Tensor) -> None:
            if self._waits:
                return
            self._notice_backward()
            if number in self._seen:
                if self._rounds is not None and buckets[0] < self._rounds.entered:
                    raise ArgosyError(
                        "a gradient came twice in one backward pass, after it had been averaged; "
                        "pass overlap=False to distribute()"
                    )
                return
            self._seen.add(number)
            for bucket in buckets:
                self._missing[bucket] -= 1
            if not self._missing[buckets[0]]:
                self._send_full_ones()

        return arrived

    def _notice_backward(self) -> None:
        """At the first gradient of a backward pass, ask to be called at its end."""
        task = torch._C._current_graph_task_id()
        if self._under_way and task == self._backward:
            return
        self._backward = task
        self._seen: set[int] = set()
        self._missing = list(self._hooked)
        if [parameter.requires_grad for parameter in self._parameters] != self._trains:
            self._missing = [-1] * len(self._hooked)  # hooks are not up to date: all leave at the end
        if not self._under_way:  # else the last pass was broken off: what it has sent holds
            self._begin()
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _begin(self, gives: bool = True, done: bool = False) -> None:
        assert self._rounds is not None
        self._under_way = True
        self._rounds.begin(gives, done)

    @torch.no_grad()
    def _send_full_ones(self) -> None:
        """Buckets leave in order, so that all workers send the same one."""
        rounds = self._rounds
        assert rounds is not None
        while rounds.entered < self._of_gradients and not self._missing[rounds.entered]:
            self._send(rounds, rounds.entered)
        rounds.advance()

    def _send(self, rounds: Rounds | DeviceRounds, bucket: int) -> None:
        """Copy the gradients of a bucket into their place; an absent one is zero, and said to be absent."""
        views, dense, present = self._given[bucket], [], []
        for piece in rounds.buckets[bucket].pieces:
            gradient = self._parameters[piece.item].grad
            present.append(gradient is not None)
            if gradient is not None:
                strided = gradient if gradient.layout == torch.strided else gradient.to_dense()
                dense.append(cut(strided, piece))
        if len(dense) == len(views):
            torch._foreach_copy_(views, dense)
            rounds.enter()
            return
        if dense:
            torch._foreach_copy_([view for view, there in zip(views, present, strict=True) if there], dense)
        for view, there in zip(views, present, strict=True):
            if not there:
                view.zero_()
        rounds.enter(present)

    @torch.no_grad()
    def _end(self, gives: bool = True) -> None:
        """Send what is left, wait for the others, and take the mean."""
        rounds = self._rounds
        assert rounds is not None
        while rounds.entered < self._of_gradients:
            if gives:
                self._send(rounds, rounds.entered)
            else:
                rounds.enter()
        if rounds.entered < len(rounds.buckets):
            state = self._buffers()
            while rounds.entered < len(rounds.buckets):
                bucket = rounds.entered
                first = len(self._parameters)
                given = [state[piece.item - first] for piece in rounds.buckets[bucket].pieces]
                torch._foreach_copy_(self._given[bucket], given)
                rounds.enter()
        self._outcome = rounds.finish(self._take)
        self._under_way = False

    def _take(self, number: int, outcome: Outcome) -> None:
        """The result of a bucket, into the gradients or buffers that it is of."""
        assert self._rounds is not None
        targets, sources = [], []
        of_gradients = number < self._of_gradients
        state = [] if of_gradients else self._buffers()
        for place, piece in enumerate(self._rounds.buckets[number].pieces):
            if of_gradients:
                if outcome.pieces is not None and not outcome.pieces[self._begins[number] + place]:
                    continue
                target = gradient_of(self._parameters[piece.item], piece.whole)
            else:
                target = state[piece.item - len(self._parameters)]
            targets.append(cut(target, piece))
            sources.append(self._results[number][place])
        if targets:
            torch._foreach_copy_(targets, sources)

    # --- training -----------------------------------------------------------------------------------------
    def accumulate(self, waits: bool) -> None:
        """See `Exchange`."""
        self._waits = waits

    def step(self, weight: float, scale: float) -> Verdict:
        """See `Exchange`."""
        if self._stops:
            return Verdict("dropped", self._step, stop=True)
        if sum(len(group["params"]) for group in self._optimizer.param_groups) != len(self._parameters):
            self.extend(len(self._parameters))
        if self._outcome is None:
            self._begin()
            self._end()
        return self._apply(scale)

    def _apply(self, scale: float) -> Verdict:
        outcome, self._outcome = self._outcome, None
        if outcome is None or not outcome.givers:
            return Verdict("skipped", self._step, stop=self._stops)
        if scale != 1.0:
            scale_gradients(self._parameters, scale)
        if self._clip_norm is not None:
            clip_grad_norm_(self._parameters, self._clip_norm)
        self._optimizer.step()
        self._step += 1
        self._keep()
        if [parameter.requires_grad for parameter in self._parameters] != self._trains:
            self._put_hooks()
        return Verdict("applied", self._step, stop=self._stops)

    def _keep(self) -> None:
        """What is kept along with a step: averages, and a checkpoint when it is time."""
        self._averages.update(self._step)
        if self._saving is not None:
            self._saving.after_step(self._step)
            if (told := self._saving.stops_at()) is not None:
                self._stop_at = told

    @property
    def _stops(self) -> bool:
        last = self._training.last_step
        told = self._stop_at is not None and self._step >= self._stop_at
        return told or (last is not None and self._step >= last)

    def skip(self) -> Verdict:
        """See `Exchange`. After backward the mean is made already: then this leaves out the whole step."""
        if self._outcome is None and not self._stops:
            self._begin(gives=False)
            self._end(gives=False)
            self._apply(1.0)
        self._outcome = None
        return Verdict("skipped", self._step, stop=self._stops)

    def pull(self) -> Verdict:
        """See `Exchange`. Parameters are fresh already."""
        self._averages.take_out()
        return Verdict("pulled", self._step, stop=self._stops)

    def pull_average(self) -> Verdict:
        """See `Exchange`."""
        self._averages.put_in()
        return Verdict("pulled", self._step, stop=self._stops)

    def optimizer_state(self) -> None:
        """See `Exchange`."""

    def give_state(self) -> None:
        """See `Exchange`."""
        if self._saving is not None:
            self._saving.give_state(self._training.state)

    def wish(self, what: Literal["save", "stop"]) -> None:
        """See `Exchange`."""
        if self._saving is not None:
            self._saving.wish(what, self._step)

    def finish(self) -> Verdict:
        """See `Exchange`."""
        if self._saving is not None:
            self._saving.finish(self._step, self._training.state)
        return self.pull()

    def release(self) -> None:
        """See `Exchange`. The others go on without this worker.

        Over several hosts it stays, giving nothing, until all are done: others may need its host's leader.
        """
        while self._rounds is not None and self._rounds.stays:
            self._begin(done=True)
            self._end(gives=False)
            if self._outcome is None or not self._outcome.active:
                break
            self._apply(1.0)
        self._close()
        if self._saving is not None:
            self._saving.close()
            self._saving = None

    def _close(self) -> None:
        self._take_hooks_off()
        if self._rounds is not None:
            self._rounds.close()
            self._rounds = None
