"""A launcher in a process of its own, and all that it started, found by a mark in their environment."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

MARK = "TEST_LAUNCHER_MARK"
_PROGRAM = Path(__file__).with_name("light_cli.py")
# Scripts of tests start with this; `wait` ends when the test releases the task, `hang` only by a signal.
PREAMBLE = """
import contextlib, json, os, signal, socket, subprocess, sys, time
job, index = os.environ["ARGOSY_JOB_NAME"], int(os.environ["ARGOSY_TASK_INDEX"])
cluster = json.loads(os.environ["ARGOSY_CLUSTER"])
from argosy.cluster.launcher import mark_joined
mark_joined()  # in place of argosy.join(), which would connect

def wait():
    open(os.environ["TEST_GATE"]).read()

def hang():
    while True:
        signal.pause()

def fail(message, caused_by=None, traceback="", code=1, at=None):
    record = {"task": f"/job:{job}/task:{index}", "time": at or time.time(), "caused_by": caused_by,
              "message": message, "traceback": traceback}
    with open(os.environ["ARGOSY_ERROR_FILE"], "w") as file:
        json.dump(record, file)
    os._exit(code)
"""


@dataclass
class Launch:
    """`argosy run` under way, or done. `text` is standard output so far, `errors` all of standard error."""

    process: subprocess.Popen[bytes]
    gate: Path
    text: str = ""
    errors: str = ""

    def until(self, *needles: str) -> None:
        """Read standard output until each of these has come."""
        stream: IO[bytes] | None = self.process.stdout
        assert stream is not None
        while not all(needle in self.text for needle in needles):
            data = os.read(stream.fileno(), 65536)
            assert data, f"the output ended without {needles}:\n{self.text}"
            self.text += data.decode(errors="replace")

    def open_gate(self) -> None:
        """Let a task that waits go on; blocks until one does."""
        self.gate.write_bytes(b"")

    def finish(self) -> int:
        """Read the rest; the exit code."""
        out, err = self.process.communicate()
        self.text += out.decode(errors="replace")
        self.errors += (err or b"").decode(errors="replace")
        return self.process.returncode

    def lines(self, task: str) -> list[str]:
        """What a task has printed on standard output."""
        start = f"[{task}] "
        return [line.removeprefix(start) for line in self.text.split("\n") if line.startswith(start)]


@dataclass
class Launcher:
    """Starts launchers in a temporary directory, and knows what they left."""

    directory: Path
    forked: bool = True
    preload: tuple[str, ...] = ()
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    keeps_logs: bool = False
    patience: float = 0.0

    def __post_init__(self) -> None:
        self.temporary.mkdir()
        self.gate = self.directory / "gate"
        os.mkfifo(self.gate)

    @property
    def temporary(self) -> Path:
        """The launcher's TMPDIR."""
        return self.directory / "tmp"

    def script(self, body: str, name: str = "train.py") -> Path:
        """A script with the preamble."""
        path = self.directory / name
        path.write_text(PREAMBLE + textwrap.dedent(body))
        return path

    def command(self, *options: str) -> list[str]:
        """`argosy run OPTIONS`, with a fork server that imports what we say, and by default not torch."""
        way = "--fork-server" if self.forked else "--no-fork-server"
        return [sys.executable, str(_PROGRAM), "run", way, *options]

    @property
    def environ(self) -> dict[str, str]:
        """The launcher's environment."""
        return dict(os.environ) | {
            MARK: self.mark,
            "TMPDIR": str(self.temporary),
            "TEST_GATE": str(self.gate),
            "TEST_PRELOAD": " ".join(self.preload),
        }

    def start(
        self,
        body: str,
        *options: str,
        args: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
        stderr: int = subprocess.PIPE,
    ) -> Launch:
        """`argosy run OPTIONS SCRIPT ARGS`."""
        process = subprocess.Popen(
            [*self.command(*options), str(self.script(body)), *args],
            env=self.environ | dict(environ or {}),
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
        return Launch(process, self.gate)

    def run(self, body: str, *options: str, args: tuple[str, ...] = ()) -> Launch:
        """The same, to its end."""
        launch = self.start(body, *options, args=args)
        launch.finish()
        return launch

    def alive(self) -> list[psutil.Process]:
        """Every process that a launcher of this test started, directly or not, and itself."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def fork_server(self) -> psutil.Process:
        """The fork server, once it runs its own program."""
        while True:
            for process in self.alive():
                with contextlib.suppress(psutil.Error):
                    if any(word.endswith("fork_server.py") for word in process.cmdline()):
                        return process

    def still_alive(self, seconds: float) -> list[psutil.Process]:
        """Who is left after so long, or none as soon as none is left."""
        end = time.monotonic() + seconds
        while (left := self.alive()) and time.monotonic() < end:
            time.sleep(0.01)
        return left

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            return False

    def check_nothing_is_left(self) -> None:
        """Fail on processes, and on temporary files other than logs that were kept on purpose."""
        left = self.still_alive(self.patience)
        for process in left:
            process.kill()
        assert not left, f"left running: {left}"
        files = [path for path in self.temporary.rglob("*") if path.is_file()]
        kept = [path for path in files if self.keeps_logs and path.suffix == ".log"]
        assert files == kept, f"left behind: {files}"
        assert self.keeps_logs or not list(self.temporary.iterdir())
