"""Every error that Argosy raises on purpose.

    ArgosyError
    ├── ConfigError        what the user gave cannot work; nothing was started; exit code 2
    │   ├── ModelMismatch  this replica's model is not the one the chief registered
    │   └── CallError      a call at the wrong moment, or with the wrong thing; names the script's line
    ├── WaitTimeout        somebody did not arrive in time; names the missing tasks
    ├── TaskLost           a task that the job cannot do without has gone
    ├── JobFailed          another task failed first; names it and its error
    ├── RemoteError        an operation failed on the task that ran it
    ├── HookFailed         a hook raised an error; names the hook, with its error as the cause
    ├── CheckpointDamaged  a checkpoint that cannot be trusted; names the file
    ├── NotFinite          a gradient or a loss is NaN or infinite; names worker, step and parameter
    ├── SaveFailed         the training is done, and its final state could not be saved
    └── WireError          bytes that are not a message of ours

Each message is one line: what is wrong, where, what was expected, what came, and the remedy. The parts are
also fields of the exception, for programs.
"""

from __future__ import annotations

from collections.abc import Sequence

USAGE_EXIT_CODE = 2


class ArgosyError(Exception):
    """The base of all errors below: catch this to catch every one of them."""


class ConfigError(ArgosyError):
    """What the user gave cannot work: `field` was expected to be `expected`, and is `got`."""

    def __init__(self, field: str, expected: str, got: object, remedy: str = "") -> None:
        self.field = field
        self.expected = expected
        self.got = got
        self.remedy = remedy
        super().__init__(f"{field}: expected {expected}, got {got}" + (f"; {remedy}" if remedy else ""))


# All that decoding another's bytes can raise: msgspec's errors and those of text that is no UTF-8 are
# ValueErrors, what is nested too deeply is a RecursionError, and our own types refuse values in their ways.
UNDECODABLE = (ValueError, RecursionError, OverflowError, ConfigError)


def exit_code(error: BaseException) -> int:
    """What a command that ends with this error exits with."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    return USAGE_EXIT_CODE if isinstance(error, ConfigError) else 1


class ModelMismatch(ConfigError):
    """A replica's model differs from the registered one in names, shapes or dtypes."""


class CallError(ConfigError):
    """The script's line `where` calls `call`, which cannot work there: `problem`."""

    def __init__(self, where: str, call: str, problem: str, remedy: str) -> None:
        super().__init__(call, "a call that can work", problem, remedy)
        self.where = where
        self.args = (f"{where}: {call}: {problem}; {remedy}",)

    @property
    def brief(self) -> str:
        """For the other tasks, which run the same script and need not repeat all of it."""
        return f"{self.field} at {self.where} cannot work"


class WaitTimeout(ArgosyError):
    """`missing` did not arrive within `seconds`."""

    def __init__(self, what: str, missing: Sequence[str], seconds: float, remedy: str = "") -> None:
        self.missing = tuple(missing)
        self.seconds = seconds
        names = ", ".join(missing)
        super().__init__(
            f"{what} after {seconds:.0f} s; missing {names}"
            + (f"; {remedy}" if remedy else "; is it started, and is its address right?")
        )


class TaskLost(ArgosyError):
    """`task` has gone, and the job cannot go on without it."""

    def __init__(self, task: str, why: str) -> None:
        self.task = task
        super().__init__(f"lost {task}: {why}")


class JobFailed(ArgosyError):
    """The job was ended by a failure of `task`; `reason` is what it said."""

    def __init__(self, task: str, reason: str) -> None:
        self.task = task
        self.reason = reason
        super().__init__(f"the job was ended by {task}: {reason}")


class RemoteError(ArgosyError, RuntimeError):
    """`operation` failed on `task`: `reason`. `created` is the client's stack, `trace` the task's
    traceback.
    """

    def __init__(self, task: str, operation: str, reason: str, created: str = "", trace: str = "") -> None:
        self.task = task
        self.operation = operation
        self.reason = reason
        self.created = created
        self.trace = trace
        text = f"{operation} failed on {task}: {reason}"
        text += f"\nmade by the client at\n{created}" if created else ""
        super().__init__(text + (f"\non {task}\n{trace}" if trace else ""))


class CheckpointDamaged(ArgosyError):
    """The file `path` of a checkpoint is not what was written."""

    def __init__(self, path: object, why: str) -> None:
        self.path = str(path)
        super().__init__(f"damaged checkpoint: {path}: {why}")


class HookFailed(ArgosyError):
    """The hook `hook` raised an error, which is the cause of this one."""

    def __init__(self, hook: str, step: int, error: BaseException) -> None:
        self.hook = hook
        super().__init__(f"the hook {hook} failed at step {step}: {type(error).__name__}: {error}")


class NotFinite(ArgosyError):
    """`what`, of the worker `task`, is not finite at `step`; the parameters have none of it."""

    def __init__(self, task: str, step: int, what: str, value: str) -> None:
        self.task = task
        self.step = step
        self.what = what
        super().__init__(
            f"{task}, step {step}: expected {what} to be finite, got {value}; "
            'try a lower learning rate, clip_norm, or NanGuard(action="skip")'
        )


class SaveFailed(ArgosyError):
    """The state at the end of a training, at `step`, is not saved in `directory`; the newest is `saved`."""

    def __init__(self, step: int, directory: object, why: str, saved: int | None) -> None:
        self.step = step
        self.directory = str(directory)
        self.saved = saved
        left = "there is no checkpoint" if saved is None else f"the newest checkpoint is of step {saved}"
        super().__init__(
            f"the final state, of step {step}, is NOT saved in {directory}: {why}; {left}; "
            "free some disk space, and start again to train from there"
        )


class WireError(ArgosyError):
    """Bytes from a peer are not a well-formed message; they changed nothing."""
