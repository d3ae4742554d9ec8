"""Which versions wrote a checkpoint."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch


def versions() -> dict[str, str]:
    """Of Argosy, torch and Python."""
    return {"argosy": _mine(), "torch": str(torch.__version__), "python": platform.python_version()}


@cache  # it is looked for on the disk, while a server makes everybody wait
def _mine() -> str:
    try:
        return version("argosy")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0"
