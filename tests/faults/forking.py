"""Jobs whose processes are forked from one that has imported torch: started, and again, in no time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from jobs import free_ports

PATIENCE = 60.0


class Nursery:
    """Starts tasks, on hosts or on this one; see nursery.py."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("nursery.py")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("ARGOSY_", "TF_"))}
        self._process = subprocess.Popen(
            [sys.executable, program], stdin=subprocess.PIPE, text=True, env=clean | {"OMP_NUM_THREADS": "1"}
        )

    def start(
        self, namespace: str, argv: list[str], out: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        assert self._process.stdin is not None
        order = {"namespace": namespace, "argv": argv, "out": str(out), "environ": dict(environ or {})}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.communicate(timeout=20)


class ForkedTask:
    """One process: what it says goes to a file."""

    def __init__(self, nursery: Nursery, argv: list[str], environ: Mapping[str, str], out: Path) -> None:
        self._out = out
        nursery.start("", argv, out, environ)

    @property
    def out(self) -> str:
        return self._out.read_text() if self._out.exists() else ""

    def until(self, text: str) -> None:
        """Wait until it has said this."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.out:
            assert time.monotonic() < deadline, f"{self._out.name} did not say {text!r}:\n{self.out}"
            time.sleep(0.002)

    def kill(self) -> None:
        """With -9, if it still runs."""
        path = self._out.with_suffix(".pid")
        deadline = time.monotonic() + PATIENCE
        while not path.exists():
            assert time.monotonic() < deadline, f"{self._out.name} was not started"
            time.sleep(0.01)
        if not self._out.with_suffix(".code").exists():
            os.kill(int(path.read_text()), signal.SIGKILL)

    def wait(self) -> int:
        """The exit code."""
        path = self._out.with_suffix(".code")
        deadline = time.monotonic() + PATIENCE
        while not path.exists():
            assert time.monotonic() < deadline, f"{self._out.name} is still running:\n{self.out}"
            time.sleep(0.01)
        return int(path.read_text())


class ForkedCluster:
    """Two servers, three workers, on this host. A task that is started again has another file."""

    def __init__(self, nursery: Nursery, argv: list[str], environ: Mapping[str, str], folder: Path) -> None:
        folder.mkdir()
        ports = free_ports(5)
        self._nursery = nursery
        self._environ = environ
        self._folder = folder
        servers, workers = (",".join(f"localhost:{port}" for port in part) for part in (ports[:2], ports[2:]))
        self._argv = [*argv, f"--ps_hosts={servers}", f"--worker_hosts={workers}"]
        self.lives: dict[str, list[ForkedTask]] = {}
        for name in ("ps0", "ps1", "worker0", "worker1", "worker2"):
            self.start(name)

    def start(self, name: str) -> None:
        lives = self.lives.setdefault(name, [])
        argv = [*self._argv, f"--job_name={name[:-1]}", f"--task_index={name[-1]}"]
        out = self._folder / f"{name}-{len(lives)}.out"
        lives.append(ForkedTask(self._nursery, argv, self._environ, out))

    def __getitem__(self, name: str) -> ForkedTask:
        return self.lives[name][-1]

    def wait(self) -> dict[str, int]:
        """The exit code of the last life of each task."""
        return {name: lives[-1].wait() for name, lives in self.lives.items()}

    def close(self) -> None:
        """End what a failed test has left."""
        for lives in self.lives.values():
            lives[-1].kill()

    def __str__(self) -> str:
        return "\n".join(
            f"--- {name}, life {number}\n{life.out[-2000:]}"
            for name, lives in self.lives.items()
            for number, life in enumerate(lives)
        )
