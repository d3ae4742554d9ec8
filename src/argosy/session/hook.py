"""What a hook is, and how a session calls its hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from argosy.errors import ArgosyError, HookFailed

if TYPE_CHECKING:
    from argosy.session.session import Session


class Hook:
    """Something that happens along with the training. Override what you need; each is given the session.

    `begin`: the session has begun, the parameters are the chief's. `before_step`: the gradients are there and
    are about to be given; `session.skip_step()` keeps them back. `after_step`: `session.verdict` says what
    became of them. `end`: the training is over, and went well.
    """

    says_steps = False  # whether it tells people of the steps, so that the session need not
    ends_training = False  # whether it ends the training at some step

    def begin(self, session: Session) -> None:
        """The session has begun."""

    def before_step(self, session: Session) -> None:
        """The gradients are about to be given."""

    def after_step(self, session: Session) -> None:
        """A step has been made."""

    def end(self, session: Session) -> None:
        """The training is over."""


class Hooks:
    """Calls hooks (see `Hook`) in the order in which they were given; an error names the hook."""

    def __init__(self, session: Session, hooks: Sequence[Hook]) -> None:
        self._session = session
        self._hooks = list(hooks)
        # Only those that do something: a step without hooks must cost nothing.
        self._before = [hook for hook in hooks if type(hook).before_step is not Hook.before_step]
        self._after = [hook for hook in hooks if type(hook).after_step is not Hook.after_step]

    @property
    def ends_training(self) -> bool:
        """Whether one of them ends the training at some step."""
        return any(hook.ends_training for hook in self._hooks)

    def begin(self) -> None:
        self._call("begin", self._hooks)

    def before_step(self) -> None:
        if self._before:
            self._call("before_step", self._before)

    def after_step(self) -> None:
        if self._after:
            self._call("after_step", self._after)

    def end(self) -> None:
        self._call("end", self._hooks)

    def _call(self, name: str, hooks: Sequence[Hook]) -> None:
        for hook in hooks:
            try:
                getattr(hook, name)(self._session)
            except ArgosyError:
                raise  # says already what is wrong, in one line
            except Exception as error:
                where = f"{type(hook).__name__}.{name}"
                raise HookFailed(where, self._session.global_step, error) from error
