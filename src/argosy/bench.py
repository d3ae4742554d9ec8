"""`argosy bench`: finds the benchmarks of a source checkout, and runs them in a process of their own.

The harness is no part of the package: it lies beside `src/`, with the peers that it compares against.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from argosy.errors import ConfigError

CHECKOUT = Path(__file__).resolve().parents[2]


def run(args: Sequence[str], checkout: Path = CHECKOUT) -> int:
    """Run the harness with these arguments; its exit code. Raises ConfigError outside a checkout."""
    if not (checkout / "benchmarks" / "__main__.py").is_file():
        raise ConfigError(
            "argosy bench",
            "a source checkout with benchmarks/",
            f"an installed package in {Path(__file__).parent}",
            "clone the repository and run `make bench` there",
        )
    process = subprocess.Popen([sys.executable, "-m", "benchmarks", *args], cwd=checkout)
    try:
        return process.wait()
    except KeyboardInterrupt:
        return process.wait()  # Ctrl-C went to the harness too, which ends what it started
