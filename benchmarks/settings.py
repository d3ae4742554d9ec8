"""How a benchmark is to be run: what the command line says, once, for every part."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Numbers of rounds and seconds; `say` shows progress."""

    scratch: Path
    data: Path
    say: Callable[[str], None]
    rounds: int = 5
    seconds: float = 8.0
    warmup: float = 2.0
    pairs: int = 12
    repeats: int = 30
    most_floats: int = 100_000_000
    memory_seconds: float = 300.0
    with_peers: bool = False
    only: frozenset[str] = frozenset()
    start_limit: float = 120.0  # what a run may take beside the seconds that it measures

    def out(self) -> Path:
        """A new empty directory for one run."""
        return Path(tempfile.mkdtemp(dir=self.scratch))
