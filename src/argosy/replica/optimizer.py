"""The optimizer that a user steps: torch's own in every way, but its step goes through the exchange."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import torch

from argosy.errors import CallError, ConfigError, SaveFailed
from argosy.events import say
from argosy.replica.exchange import Exchange, Resumed, Training, Verdict, parameters_of
from argosy.replica.held_gradients import HeldGradients
from argosy.replica.hyperparameters import take_groups
from argosy.replica.statistics import keeps_statistics
from argosy.replica.turn import Turn
from argosy.script import calling_line
from argosy.torch_private import STEP_WAS_CALLED, TakesScale, move_hooks, post_hooks_of, pre_hooks_of

# Far beyond any batch size, and so that the sum of many is still a number.
_TOO_HEAVY = 1e20
# Servers take what is smaller for zero (denormal numbers are slow), and cannot divide by that.
_NOTHING = sys.float_info.min


class Watcher(Protocol):
    """Who is told of every step: a session's hooks."""

    def before_step(self) -> None:
        """The gradients are about to be given."""

    def after_step(self) -> None:
        """The verdict is here."""


class DistributedOptimizer(TakesScale, torch.optim.Optimizer):
    """Wraps a torch optimizer; shares its parameter groups and state, so schedulers work on either."""

    # TakesScale: GradScaler hands over its scale and its verdict on infinities instead of leaving `step` out.
    # A replica that left out a synchronous step would hold up all the others.

    def __init__(self, inner: torch.optim.Optimizer, exchange: Exchange, speaks: bool = False) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self.param_groups = inner.param_groups
        self.state = inner.state
        # It is this one that is stepped: what was to happen around the other's steps happens around these.
        move_hooks(inner, self)
        self.batch_weight: float | None = None  # of the batch at hand, where gradients are weighted
        self._weight: float | None = None  # of what has been accumulated since the last push
        self._inner = inner
        self._add_to_inner = inner.add_param_group
        inner.add_param_group = self.add_param_group  # type: ignore[method-assign]  # wherever it is called
        self._saved_groups: Sequence[dict[str, Any]] = ()
        self._exchange = exchange
        self._started = False
        self._without_session = False
        self.stepped = False  # whether a step has been made
        self._gathered = 0  # backward passes since the last push, when `every` is used
        self._held = HeldGradients()
        self.verdict = Verdict("pulled", 0)
        self.watcher: Watcher | None = None
        self.keep_back = False  # the next step brings nothing
        self._speaks = speaks  # for all replicas, of which there are several
        exchange.watch(inner, self._start_unasked)

    def _start_unasked(self) -> None:
        """Without a session a training begins with its first gradient or step."""
        if self._started:
            return
        self.start(Training(model=None))
        self._without_session = True

    def start(self, training: Training) -> Verdict:
        """Begin to train: called by the session, or by the first step."""
        self._started = True
        self.verdict = self._exchange.start(self._inner, training)
        if training.hyperparameters == "checkpoint":
            self._saved_groups = self.resumed.groups or ()
        return self.verdict

    def take_groups(self, groups: Sequence[dict[str, Any]]) -> None:
        """Take these hyperparameters; those of groups that are not there yet, when they are added."""
        self._saved_groups = groups
        take_groups(self, groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. Inside a session, add it in every worker, before the forward pass that needs it: a
        training that goes on from a checkpoint restores the group here.
        """
        if "_inner" not in self.__dict__:  # called by torch's constructor
            super().add_param_group(param_group)
            return
        group, first = len(self.param_groups), sum(len(each["params"]) for each in self.param_groups)
        self._add_to_inner(param_group)
        take_groups(self, self._saved_groups, group)
        if self._started:
            self._exchange.extend(first)

    def step(  # type: ignore[override]
        self, closure: Callable[[], Any] | None = None, *, every: int = 1, weight: float | None = None
    ) -> Verdict:
        """Push the gradients, wait, pull fresh parameters; says what became of the gradient.

        `every=k`: accumulate, and push the mean of k backward passes at each k-th call; the calls between
        are answered "held" and `zero_grad` keeps the gradients. `weight`: of this backward pass in a weighted
        mean (`Sync(weighted=True)`); default: the batch size. The mean of several weighs as much as they do
        together; what weighs nothing is skipped.
        """
        if every < 1:
            raise ConfigError("step(every)", "a number of backward passes, 1 or more", every)
        first, self.stepped = not self.stepped, True
        if first:
            self._look_for_gradients(closure)
        self._start_unasked()
        if first and self._without_session:
            self._look_for_statistics()
        if closure is not None:
            with torch.enable_grad():
                closure()
        if self._found_inf():
            return self.skip()
        self._weigh(weight)
        self._gathered += 1
        self._take_the_scale()
        if self._gathered < every:
            self._exchange.hold(self._gathered + 1 < every, self._scaled)
            self._held.keep(self._parameters(), self._loss_scale)
            return Verdict("held", self.verdict.global_step)
        if self._weight is not None and self._weight < _NOTHING:
            return self.skip()
        passes, self._gathered = self._gathered, 0
        self._held.clear()
        for pre in pre_hooks_of(self).values():
            pre(self, (), {})
        if self.watcher is not None:
            self.watcher.before_step()
            if self.keep_back:
                self.skip()
                return self._made()
        setattr(self._inner, STEP_WAS_CALLED, True)  # a scheduler on it asks
        weighs, self._weight = self._weight, None
        turn = Turn(passes, 1.0 / (self._loss_scale or 1.0), 1.0 if weighs is None else weighs, self._scaled)
        self.verdict = self._exchange.step(turn)
        self._made()
        if self.watcher is not None:
            self.watcher.after_step()
        return self.verdict

    def _weigh(self, weight: float | None) -> None:
        """A backward pass belongs to the next push, with this weight."""
        known = self.batch_weight if weight is None else float(weight)
        if known is None:
            return
        if not 0.0 <= known < _TOO_HEAVY:
            raise ConfigError("step(weight)", f"a number from 0 to {_TOO_HEAVY}", known)
        self._weight = known + (self._weight or 0.0)

    def _look_for_gradients(self, closure: object) -> None:
        """At the first step: an optimizer of parameters that no model uses any more trains nothing."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        if self._speaks and closure is None and not any(p.grad is not None for p in parameters):
            say(
                f"{calling_line()}: step(): no parameter of the optimizer has a gradient; "
                "if you rebuilt the model after distribute(), create the optimizer from the new model"
            )

    def _look_for_statistics(self) -> None:
        """At the first step: without a session nobody has told us of the model, and so of its buffers."""
        if self._speaks and keeps_statistics(p for group in self.param_groups for p in group["params"]):
            say(
                "without a session each worker keeps its own BatchNorm running statistics and buffers: "
                "train in `with replica.session(model, optimizer)`"
            )

    def _made(self) -> Verdict:
        for post in post_hooks_of(self).values():
            post(self, (), {})
        return self.verdict

    # torch would wrap this in its own profiling and hooks, which the user's optimizer inside has already.
    step.hooked = True  # type: ignore[attr-defined]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here only add to the gradients: nothing is averaged before the one after it."""
        self._exchange.accumulate(True)
        try:
            yield
        finally:
            self._exchange.accumulate(False)
            self._weigh(None)

    def skip(self) -> Verdict:
        """Contribute nothing to this step, and hold nobody up: for gradients that are not finite."""
        self._start_unasked()
        self._held.clear()
        self._gathered = 0
        self._weight = None
        self.keep_back = False
        self.verdict = self._exchange.skip()
        if self.watcher is not None:
            self.watcher.after_step()
        return self.verdict

    @property
    def resumed(self) -> Resumed:
        """From where the training goes on, once it has begun."""
        return self._exchange.resumed

    def give_state(self) -> None:
        """Give this replica's own state, if it is wanted: called by the session before each batch."""
        self._exchange.give_state()

    def wish(self, what: Literal["save", "stop"]) -> None:
        """With the next step: save the state soon, or end the job. Called by the session."""
        self._exchange.wish(what)

    def pull(self, average: bool = False) -> Verdict:
        """Get fresh parameters, or their moving averages, without giving a gradient."""
        self.verdict = self._exchange.pull_average() if average else self._exchange.pull()
        return self.verdict

    def finish(self) -> None:
        """Get the final parameters, in memory of their own: called by the session. SaveFailed comes last."""
        try:
            self.verdict = self._exchange.finish()
        except SaveFailed:
            self._exchange.release()  # the training is done all the same
            raise
        self._exchange.release()

    def state_dict(self) -> dict[str, Any]:
        """As torch's own: what the servers keep of each parameter is fetched from them."""
        kept = self._exchange.optimizer_state() if self._started else None
        plain = self._inner.state_dict()
        return plain if kept is None else {**plain, "state": kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's own. Where servers keep the state, before the training begins: the chief's counts."""
        if self._started and self._exchange.keeps_state:
            problem = "the session has begun, and the optimizer's state is on the servers"
            remedy = "call it before `replica.session(...)`, or resume from a checkpoint"
            raise CallError(calling_line(), "load_state_dict()", problem, remedy)
        self._inner.load_state_dict(state_dict)
        self.param_groups = self._inner.param_groups
        self.state = self._inner.state

    def abandon(self) -> None:
        """The training has failed: let go of what it holds."""
        self._exchange.abandon()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; in the middle of an accumulation it keeps the gradients."""
        if self._gathered:
            return
        self._weight = None
        if not set_to_none or type(self._inner).zero_grad is not torch.optim.Optimizer.zero_grad:
            self._inner.zero_grad(set_to_none)
            return
        # What torch's does, without what it spends on a profiler's mark: this is done at every step.
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @property
    def _scaled(self) -> bool:
        """Whether it is a GradScaler that calls `step`."""
        return hasattr(self, "found_inf")

    def _found_inf(self) -> bool:
        found = getattr(self, "found_inf", None)
        return found is not None and bool(found)

    @property
    def _loss_scale(self) -> float | None:
        """The scale that GradScaler has multiplied the loss by and not taken out yet."""
        scale = getattr(self, "grad_scale", None)
        return None if scale is None else float(scale)

    def _take_the_scale(self) -> None:
        """What the passes before have gathered gets the loss scale of this one."""
        scale = self._loss_scale
        if scale is not None and self._held.differs(scale):
            self._exchange.hold(waits=False, scaled=True)  # what was averaged is this replica's own again
            self._held.rescale(self._parameters(), scale)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for _, parameter in parameters_of(self._inner)]
