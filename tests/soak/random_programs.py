"""20,000 random programs against plain PyTorch, on all cores, with lines of progress. `make soak`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

PROGRAMS = 20_000
SWEEPING = Path(__file__).resolve().parents[1] / "differential" / "sweeping.py"


@pytest.mark.timeout(4 * 3600)
def test_random_programs_agree_with_plain_pytorch() -> None:
    """Every process has a range of seeds of its own, and none of those of `make test`."""
    shares = os.cpu_count() or 1
    count = -(-PROGRAMS // shares)
    found: list[str] = []

    def sweep(share: int) -> None:
        command = [sys.executable, str(SWEEPING), str((share + 1) * 10**7), str(count)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                print(f"share {share + 1} of {shares}: {line}", end="", flush=True)
        if process.returncode:
            found.append("".join(lines[-80:]))

    threads = [threading.Thread(target=sweep, args=(share,)) for share in range(shares)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not found, "\n".join(found)
