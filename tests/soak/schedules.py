"""A million schedules of a job on paper, 20,000 of the real code over channels that break. `make soak`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

SIMULATED = 1_000_000
REAL = 20_000
FIRST = 1_000_000  # none of the seeds of `make test`
SIMULATION = Path(__file__).resolve().parents[1] / "simulation"


def sweep(kind: str, count: int) -> None:
    """So many schedules, on all cores, with lines of progress; a seed that fails is in what is printed."""
    shares = os.cpu_count() or 1
    each = -(-count // shares)
    found: list[str] = []

    def play(share: int) -> None:
        words = [kind, str(FIRST + share * each), str(each)]
        command = [sys.executable, str(SIMULATION / "sweeping_schedules.py"), *words]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if "schedules" in line:
                    print(f"{kind}, share {share + 1} of {shares}: {line}", end="", flush=True)
        if process.returncode:
            found.append("".join(lines[-80:]))

    threads = [threading.Thread(target=play, args=(share,)) for share in range(shares)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not found, "\n".join(found)


@pytest.mark.timeout(4 * 3600)
def test_a_million_schedules_keep_the_invariants() -> None:
    sweep("simulated", SIMULATED)


@pytest.mark.timeout(4 * 3600)
def test_real_jobs_whose_connections_break() -> None:
    sweep("real", REAL)
