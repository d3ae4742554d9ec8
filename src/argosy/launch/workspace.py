"""The directories of a run: a private one for error records, and one for logs.

Logs that nobody asked for are removed unless the job failed.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from argosy.cluster.launcher import failure_file, given_up_file
from argosy.cluster.spec import Task
from argosy.errors import ConfigError
from argosy.launch.guard import Guard
from argosy.launch.job import STATUS_NAME


class Workspace:
    """Made when the run starts; `close` before the guard is dismissed."""

    def __init__(self, guard: Guard, log_dir: Path | None) -> None:
        self._private = _temporary() / f"argosy-{os.getpid()}-{secrets.token_hex(4)}"
        guard.watch_directory(self._private)  # before it exists: we may be killed at any moment
        self._errors = self._private / "errors"
        self.logs = log_dir or self._private / "logs"
        self.keep_logs = log_dir is not None
        self._private.mkdir(mode=0o700)
        self._errors.mkdir()
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.close()
            raise ConfigError("--log-dir", "a directory that can be made", str(error)) from None

    def error_file(self, task: Task) -> Path:
        """Where `task` writes its error record."""
        return self._errors / f"{task.job}-{task.index}.json"

    @property
    def status_file(self) -> Path:
        """Where the chief of a job without servers says how it stands."""
        return self._errors / STATUS_NAME

    @property
    def failure_file(self) -> Path:
        """Where tasks that wait look for the launcher's word of a failure."""
        return failure_file(self._errors / STATUS_NAME)

    @property
    def given_up_file(self) -> Path:
        """Where tasks find who is not started again."""
        return given_up_file(self._errors / STATUS_NAME)

    def log_file(self, task: Task) -> Path:
        """Where its output goes."""
        return self.logs / f"{task.job}-{task.index}.log"

    def close(self) -> None:
        """Remove what is not kept."""
        kept_inside = self.keep_logs and self._private in self.logs.parents
        shutil.rmtree(self._errors if kept_inside else self._private, ignore_errors=True)


def _temporary() -> Path:
    """As tempfile.gettempdir(), which tries each by a file of its own and leaves that if killed meanwhile."""
    asked = [Path(value) for name in ("TMPDIR", "TEMP", "TMP") if (value := os.environ.get(name))]
    for path in (*asked, Path("/tmp"), Path("/var/tmp")):
        if path.is_dir() and os.access(path, os.W_OK | os.X_OK):
            return path.absolute()
    return Path.cwd()
