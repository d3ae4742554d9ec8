"""The peers' own environment, .venv-peers/: made when asked, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers"
PEERS_PYTHON = PEERS / "bin" / "python"
CONSTRAINTS = ROOT / "benchmarks" / "constraints.txt"
# torchmonarch imports opentelemetry without asking for it.
PACKAGES = (
    *("torch", "tensorflow-cpu", "ray", "numpy", "mpi4py", "openmpi"),
    *("torchmonarch", "opentelemetry-api", "opentelemetry-sdk"),
)
_STAMP = PEERS / ".installed"
_TIME_LIMIT = 1800.0


def available() -> bool:
    """Whether the environment is there, with the versions that are pinned now."""
    return _STAMP.exists() and _STAMP.read_bytes() == CONSTRAINTS.read_bytes()


def make() -> None:
    """Make the environment, unless it is there."""
    if available():
        return
    print(f"setting up {PEERS}: {', '.join(PACKAGES)} (a few minutes)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True, timeout=_TIME_LIMIT)
    pip = [str(PEERS_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pip, "-c", str(CONSTRAINTS), *PACKAGES], check=True, timeout=_TIME_LIMIT, env=environ)
    _STAMP.write_bytes(CONSTRAINTS.read_bytes())
