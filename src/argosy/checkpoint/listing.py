"""What lies in a directory of checkpoints, for a person: `argosy checkpoints DIRECTORY`. No torch here."""

from __future__ import annotations

import time
from pathlib import Path

from argosy.checkpoint import folder
from argosy.errors import CheckpointDamaged, ConfigError

_UNITS = (("d", 86400), ("h", 3600), ("min", 60))


def listing(directory: Path) -> tuple[list[str], bool]:
    """A line for each checkpoint, and whether all are sound."""
    if not directory.is_dir():
        raise ConfigError("DIRECTORY", "a directory of checkpoints", str(directory))
    found = folder.saved(directory)
    if not found:
        return [f"no checkpoints in {directory}"], True
    lines = [f"{'step':>12}  {'size':>10}  {'age':>9}  state"]
    all_sound = True
    for each in found:
        try:
            index = folder.check(each.path)
        except CheckpointDamaged as error:
            all_sound = False
            lines.append(f"{each.step:>12}  {'':>10}  {'':>9}  {error}")
        else:
            age = _age(time.time() - index.time)
            lines.append(f"{each.step:>12}  {index.nbytes / 1e6:>7.1f} MB  {age:>9}  sound")
    return lines, all_sound


def _age(seconds: float) -> str:
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
