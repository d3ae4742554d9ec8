"""Names of devices, complete or in part, in any of TensorFlow's spellings. Pure.

`/job:worker/task:1/cpu:0`, `/job:worker/replica:0/task:1`, `/device:GPU:0`, `/gpu:0`, `cpu`: what a name
leaves out comes from the scope around it, and else from the task that the client connected to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from argosy.cluster.spec import Task
from argosy.errors import ConfigError

_PARTS = re.compile(
    r"job:(?P<job>[A-Za-z][\w.-]*)|replica:(?P<replica>[0-9]{1,9})|task:(?P<task>[0-9]{1,9})"
    r"|(?:device:)?(?P<kind>[A-Za-z]+)(?::(?P<index>[0-9]{1,9}|\*))?"
)
_KINDS = {"cpu": "cpu", "gpu": "gpu", "cuda": "gpu"}
_EXPECTED = "a device such as /job:worker/task:0, /cpu:0 or /job:ps/task:0/gpu:1"


@dataclass(frozen=True)
class DeviceName:
    """A device of a task, or a part of its name."""

    job: str | None = None
    task: int | None = None
    kind: str | None = None
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> DeviceName:
        """Read a name; a ConfigError shows what one looks like."""
        found: dict[str, str] = {}
        if not isinstance(text, str):
            raise ConfigError("device", _EXPECTED, repr(text))
        for part in text.strip().strip("/").split("/") if text.strip() else ():
            match = _PARTS.fullmatch(part)
            given = {} if match is None else {k: v for k, v in match.groupdict().items() if v is not None}
            kind = given.get("kind", "cpu").lower()
            if match is None or kind not in _KINDS or given.keys() & found.keys():
                raise ConfigError("device", _EXPECTED, repr(text))
            found |= given
        if found.get("replica", "0") != "0":
            raise ConfigError("device", "replica:0, the only replica", repr(text))
        index = found.get("index")
        return cls(
            found.get("job"),
            int(found["task"]) if "task" in found else None,
            _KINDS[found["kind"].lower()] if "kind" in found else None,
            None if index in (None, "*") else int(index),
        )

    def within(self, outer: DeviceName) -> DeviceName:
        """This name, with what it leaves out taken from the scope around it."""
        if self.job is not None and self.job != outer.job:  # another job: its tasks have their own numbers
            outer = DeviceName(kind=outer.kind, index=outer.index)
        return DeviceName(
            self.job if self.job is not None else outer.job,
            self.task if self.task is not None else outer.task,
            self.kind if self.kind is not None else outer.kind,
            self.index if self.index is not None or self.kind is not None else outer.index,
        )

    def complete(self, home: Task) -> tuple[Task, str]:
        """The task, and the device on it as `cpu:0`."""
        if self.job is None:
            task = Task(home.job, home.index if self.task is None else self.task)
        else:
            task = Task(self.job, self.task or 0)
        return task, f"{self.kind or 'cpu'}:{self.index or 0}"
