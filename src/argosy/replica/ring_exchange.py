"""The exchange without servers: gradients are averaged over all workers, and the user's own optimizer steps.

When backward is over, `.grad` holds the mean of all workers, so what a user does to it then (clipping, say)
is done to the mean, and the same everywhere. A worker that skips cannot know what that was: the first of
those who gave tells it in a second round, and all step with the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from argosy.errors import ArgosyError
from argosy.events import say
from argosy.replica.averaging import Averaging
from argosy.replica.chief_values import check_alike, take_state, take_values
from argosy.replica.exchange import Resumed, Training, Verdict, begin_from, names_of, parameters_of
from argosy.replica.model_state import buffer_places
from argosy.replica.moving_averages import MovingAverages
from argosy.replica.ring_buffers import NOTHING
from argosy.replica.ring_items import Places, buffers_at
from argosy.replica.ring_saving import RingSaving
from argosy.replica.step_check import BatchCheck, Stage, StepCheck
from argosy.replica.torch_state import TorchState
from argosy.replica.turn import Turn, clip, gradients_of, scale
from argosy.ring.member import RingMember
from argosy.ring.notes import NO_WISHES, RoundOutcome, Says, Wishes
from argosy.torch_private import at_end_of_backward, graph_task


class RingExchange:
    """One worker's `Exchange` with all the others. `overlap`: average during backward, and not in `step`."""

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
        self._parameters: list[nn.Parameter] = []
        self._averaging: Averaging | None = None
        self._batches = BatchCheck(member)
        self._waits = False  # for further backward passes before the gradients are complete
        self._outcome: RoundOutcome | None = None  # of the round that this step's gradients have been through
        self._late = -1  # the backward pass that is averaged when it is over
        self._last_giver = -1
        self._shared: set[tuple[int, str]] = set()  # buffers that all have, by module and name
        self._watched: list[RemovableHandle] = []
        self._saving: RingSaving | None = None
        self._state: TorchState | None = None
        self._told = NO_WISHES  # what somebody wants of all after the next step
        self._stop_at: int | None = None
        self._averages = MovingAverages((), None)
        self.resumed = Resumed()
        self.keeps_state = False

    # --- beginning ----------------------------------------------------------------------------------------
    def watch(self, optimizer: torch.optim.Optimizer, begin: Callable[[], None]) -> None:
        """See `Exchange`. The first backward pass begins it: the first mean is made as every other."""

        def arrived(_: torch.Tensor) -> None:
            if self._averaging is None and not self._waits:
                self._begin_late(begin)

        self._member.on_leaving(self._close)
        if self._overlaps:
            for _, parameter in parameters_of(optimizer):
                if parameter.requires_grad:
                    self._watched.append(parameter.register_post_accumulate_grad_hook(arrived))

    def start(self, optimizer: torch.optim.Optimizer, training: Training) -> Verdict:
        self._optimizer = optimizer
        self._training = training
        self._step_check = StepCheck(optimizer, self._member.names, self._member.gather)
        self._outcome = None
        self._begin_saving(training)
        self._open(first=True)
        if not self.resumed.step:
            self._averages.restart()
        return self.pull()

    def _begin_saving(self, training: Training) -> None:
        """What the training begins from: a checkpoint, a file, or the chief's parameters as they are."""
        parameters = [parameter for _, parameter in parameters_of(self._optimizer)]
        self._averages = MovingAverages(parameters, training.average)
        if training.keeping is None:
            if training.initial is not None and self._member.rank == 0:
                training.initial()
            return
        self._state = state = TorchState(training.model, self._optimizer)
        state.averages = self._averages.values
        self._saving = RingSaving(training, training.keeping, state, self._member)
        self.resumed = self._saving.begin(scales_alike=self._overlaps)
        begin_from(self._optimizer, training, self.resumed)
        self._step = self.resumed.step

    def extend(self, first: int) -> None:
        self._take_back(Says.HOLDS)
        self._extend(first)

    def _extend(self, first: int) -> None:
        self._round(Says.HOLDS, "joins")  # on which all agree, or each hears what another does instead
        if self._state is not None:
            self._state.restore_later(first)
        self._open()
        self._averages.extend(self._parameters)
        if self._state is not None:
            self._state.restore_averages(first)

    def _open(self, *, first: bool = False) -> None:
        """Agree on what is trained, take the chief's values, and make room for the gradients."""
        pairs = parameters_of(self._optimizer)
        self._parameters = [parameter for _, parameter in pairs]
        model = self._training.model
        places = list(buffer_places(model).values())
        check_alike(self._member, names_of(model, pairs), self._parameters, buffers_at(places))
        self._take_the_chiefs(places, first)
        brought = NOTHING if self._averaging is None else self._averaging.buffers.brought()
        self._close()
        on_pass = self._begin_pass if self._overlaps else None
        self._averaging = Averaging(
            self._member,
            self._parameters,
            places,
            self._training.buffer_rule,
            self._wire,
            on_pass,
            self._end_pass,
            brought,
        )

    def _take_the_chiefs(self, places: Places, first: bool) -> None:
        """Parameters, new buffers, what the optimizer leaves alone, and at first its state."""
        model = self._training.model
        trained = {id(parameter) for parameter in self._parameters}
        rest = [] if model is None else [p for p in model.parameters() if id(p) not in trained]
        # What a worker has changed of its buffers in this step is still to count.
        fresh = [(module, name) for module, name in places if (id(module), name) not in self._shared]
        self._shared |= {(id(module), name) for module, name in places}
        changed = take_values(self._member, [*self._parameters, *rest, *buffers_at(fresh)])
        if not first:
            return
        take_state(self._member, self._optimizer, self._parameters)
        if model is None:  # begun by a gradient, which was made before
            told = self._member.gather(bytes([changed and bool(gradients_of(self._parameters))]))
            names = [name for name, each in zip(self._member.names, told, strict=True) if any(each)]
            if names and self._member.rank == 0:
                say(
                    f"without a session {', '.join(names)} computed the first gradient from its own initial "
                    "parameters, not from the chief's: use a session, or the same seed for the model"
                )

    @property
    def _grown(self) -> bool:
        """Whether the optimizer has more parameters than are averaged."""
        count = 0
        for group in self._optimizer.param_groups:
            count += len(group["params"])
        return count != len(self._parameters)

    # --- rounds -------------------------------------------------------------------------------------------
    def _begin_pass(self) -> None:
        """A backward pass has made its first gradient."""
        if self._waits:
            return
        if self._grown:
            self._begin_late(lambda: self._extend(len(self._parameters)))
            return
        if self._outcome is not None and not self._outcome.complete:
            self._round(Says.HOLDS, "ends")  # who has skipped waits for what becomes of the last pass
        self._outcome = None
        self._use.begin_pass(lambda: self._mark("begins"))

    def _begin_late(self, prepare: Callable[[], None]) -> None:
        """Average a pass when it is over: what comes before that changes parameters, which it still needs."""
        task = graph_task()
        if task != self._late:
            self._late = task

            def end() -> None:
                prepare()
                self._outcome = self._round(Says.GIVES, takes=True)

            at_end_of_backward(end)

    def _end_pass(self, outcome: RoundOutcome) -> None:
        """It is over, and `.grad` is the mean."""
        self._outcome = self._checked(outcome)

    @property
    def _use(self) -> Averaging:
        assert self._averaging is not None
        return self._averaging

    def _round(self, says: Says, stage: Stage = "begins", takes: bool = False) -> RoundOutcome:
        """A round outside of backward; "ends": the second one of a step that somebody has skipped."""
        averaging = self._use
        if not averaging.under_way:  # else a backward pass was broken off, and what it has sent holds
            averaging.begin(says, self._mark(stage), stage == "ends")
        return self._checked(averaging.end(takes))

    def _mark(self, stage: Stage) -> int:
        if (loaded := self._training.loads.changed()) is not None:
            self._step_check.loaded(loaded.digest)
        return self._step_check.mark(self._step, stage)

    def _checked(self, outcome: RoundOutcome) -> RoundOutcome:
        self._step_check.check(outcome)
        if outcome.wishes:
            self._told |= outcome.wishes
        if outcome.givers:
            self._last_giver = outcome.first
            if not outcome.complete:
                self._step_check.scaled(1.0)
        return outcome

    # --- training -----------------------------------------------------------------------------------------
    def accumulate(self, waits: bool) -> None:
        self._waits = waits

    def hold(self, waits: bool, scaled: bool) -> None:
        """See `Exchange`. A pass that was averaged already counts with the others, and not on its own."""
        if self._in_backward and self._outcome is None:  # others may have averaged a pass that this one lacks
            self._outcome = self._round(Says.GIVES)
        self._waits = waits and not scaled
        self._take_back(Says.HOLDS)

    @property
    def _in_backward(self) -> bool:
        """Whether the others average the pass of this moment in backward, and so before they scale it."""
        return self._overlaps and not self._waits

    def _take_back(self, says: Says) -> None:
        outcome, self._outcome = self._outcome, None
        if outcome is not None:
            self._use.take_back()
            if not outcome.complete:
                self._round(says, "ends")

    def step(self, turn: Turn) -> Verdict:
        if self._stops:
            return Verdict("dropped", self._step, stop=True)
        if self._grown:
            self.extend(len(self._parameters))
        in_backward = self._in_backward or self._outcome is not None
        if not in_backward:
            scale(self._parameters, turn.factor)
        if self._outcome is None:
            self._outcome = self._round(Says.GIVES, takes=True)
        if in_backward:
            scale(self._parameters, turn.factor)
        clip(self._parameters, self._clip_norm)
        outcome, self._outcome = self._outcome, None
        # The next passes are likely to be like these; but who has skipped does not know that.
        self._waits = turn.passes > 1 and not turn.scaled and outcome.complete
        if outcome.complete:
            self._step_check.scaled(turn.factor if in_backward else 1.0)
        if not outcome.complete and not self._end_step(outcome, Says.GIVES):
            return Verdict("skipped", self._step, stop=self._stops)
        self._apply()
        self._batches.after_step(self._training.batches())
        return Verdict("applied", self._step, stop=self._stops)

    def _end_step(self, outcome: RoundOutcome, says: Says) -> bool:
        """All get the gradient as the first giver has it now; whether there is one, and it is applied."""
        tells = outcome.first == self._member.rank
        ended = self._round(says if tells else Says.SKIPS, "ends", takes=True)
        if ended.held:
            raise ArgosyError(
                "one worker accumulates gradients while another applies them; "
                "call step() with the same `every` on every worker"
            )
        return bool(ended.givers)

    def _apply(self) -> None:
        """The optimizer steps, and what is kept along with a step follows."""
        self._optimizer.step()
        self._step += 1
        self._averages.update(self._step)
        told, self._told = self._told, NO_WISHES
        if self._saving is not None:
            self._saving.after_step(self._step, Wishes.SAVE in told)
        if Wishes.STOP in told:
            self._stop_at = self._step
        self._use.follow()

    @property
    def _stops(self) -> bool:
        last = self._training.last_step
        told = self._stop_at is not None and self._step >= self._stop_at
        return told or (last is not None and self._step >= last)

    def skip(self) -> Verdict:
        """See `Exchange`. After backward the mean is made already: then this leaves out the whole step."""
        if self._stops:
            return Verdict("skipped", self._step, stop=True)
        if self._grown:
            self.extend(len(self._parameters))
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            self._follow_the_others()
        elif not outcome.complete and self._end_step(outcome, Says.SKIPS):
            self._apply()  # another worker has not left it out
        self._waits = False
        return Verdict("skipped", self._step, stop=self._stops)

    def _follow_the_others(self) -> None:
        """Give nothing, and step with what the others give; the gradients of this worker stay its own."""
        own = [parameter.grad for parameter in self._parameters]
        try:
            while self._round(Says.SKIPS).givers:
                for parameter in self._parameters:
                    parameter.grad = None  # one that nobody uses has no gradient, whatever was left of before
                ended = self._round(Says.SKIPS, "ends", takes=True)
                if ended.givers:
                    self._apply()
                if not ended.held:
                    return
        finally:
            for parameter, gradient in zip(self._parameters, own, strict=True):
                parameter.grad = gradient

    def pull(self) -> Verdict:
        """See `Exchange`. Parameters are fresh already."""
        self._averages.take_out()
        return Verdict("pulled", self._step, stop=self._stops)

    def pull_average(self) -> Verdict:
        self._averages.put_in()
        return Verdict("pulled", self._step, stop=self._stops)

    def optimizer_state(self) -> None:
        """See `Exchange`."""

    def give_state(self) -> None:
        if self._saving is not None:
            self._saving.give_state(self._training.state)

    def wish(self, what: Literal["save", "stop"]) -> None:
        self._member.wishes |= Wishes.SAVE if what == "save" else Wishes.STOP

    def finish(self) -> Verdict:
        if Wishes.STOP in self._member.wishes and not self._stops and self._averaging is not None:
            self._follow_the_others()  # they hear of it in their next step, which all make
        if self._saving is not None:
            self._saving.finish(self._step, self._training.state)
        return self.pull()

    def release(self) -> None:
        """See `Exchange`. The others go on without this worker.

        Over several hosts it stays, giving nothing, until all are done: others may need its host's leader.
        Then it takes the parameters of one who was among the last.
        """
        if self._averaging is not None and self._averaging.rounds.stays:
            while (outcome := self._round(Says.IS_DONE)).active:
                if outcome.givers and not outcome.complete:
                    self._round(Says.IS_DONE, "ends")
            if self._last_giver >= 0:
                take_values(self._member, self._parameters, self._last_giver)
        self.abandon()

    def abandon(self) -> None:
        """See `Exchange`."""
        self._close()
        if self._saving is not None:
            self._saving.close()
            self._saving = None

    def _close(self) -> None:
        for handle in self._watched:
            handle.remove()
        self._watched = []
        if self._averaging is not None:
            self._averaging.close()
            self._averaging = None
