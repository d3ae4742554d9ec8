"""Which versions wrote a checkpoint."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch


def versions() -> dict[str, str]:
    """Of Argosy, torch and Python."""
    try:
        mine = version("argosy")
    except PackageNotFoundError:  # run from a source tree that is not installed
        mine = "0"
    return {"argosy": mine, "torch": str(torch.__version__), "python": platform.python_version()}
