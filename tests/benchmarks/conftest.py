"""Lets `pytest` find the benchmarks package, as `python -m pytest` does."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
