"""The part `remote`: one client that drives tasks, beside the same placement in a TensorFlow session, and
torchmonarch's way of doing it.
"""

from __future__ import annotations

import os
import sys
from statistics import median
from typing import Any

from benchmarks.catalogue import SCRIPTS as CONTENDERS
from benchmarks.peers import PEERS_PYTHON
from benchmarks.running import ROOT, Launch, Run, run
from benchmarks.settings import Settings

SCRIPT = ROOT / "benchmarks" / "micro" / "remote.py"
_LIMIT = 240.0
# Argosy as it is in this tree, wherever the installed one comes from.
_ENVIRON = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def measure_remote(settings: Settings) -> dict[str, Any]:
    """Interleaved rounds: operations a second, the captured step on both sides, two stages against one."""
    ours: list[dict[str, float]] = []
    theirs: list[float] = []
    monarch: list[dict[str, float]] = []
    for number in range(settings.rounds):
        ours.append(_ours(settings))
        if settings.with_peers or PEERS_PYTHON.exists():
            theirs.append(_peer(settings, "tensorflow_session.py")["step"])
            monarch.append(_peer(settings, "monarch_mesh.py"))
        said = f", TensorFlow {theirs[-1]:.2f} ms" if theirs else ""
        settings.say(f"remote, round {number + 1}: {ours[-1]['step']:.2f} ms a captured step{said}")
    settings.say(f"remote: two stages are {median(each['stages'] for each in ours):.2f} x one task")
    return {"kind": "remote", "rounds": ours, "tensorflow": theirs, "monarch": monarch}


def _ours(settings: Settings) -> dict[str, float]:
    serve = (sys.executable, "-m", "argosy.cli", "run", "--serve", "--threads", "1")
    found: dict[str, float] = {}
    for what, tasks in (
        ("step", ("--ps", "1", "--workers", "1")),
        ("stages", ("--ps", "0", "--workers", "2")),
    ):
        out = settings.out()
        words = (str(SCRIPT), "--what", what, "--seconds", str(settings.seconds / 2), "--out", str(out))
        launch = Launch("argosy", (*serve, *tasks, *words))
        found |= run(Run([launch], out, ["client.json"], _LIMIT, environ=_ENVIRON)).files[0]
    return found


def _peer(settings: Settings, script: str) -> dict[str, float]:
    out = settings.out()
    words = ("--seconds", str(settings.seconds / 2), "--out", str(out))
    launch = Launch("client", (str(PEERS_PYTHON), str(CONTENDERS / script), *words))
    found: dict[str, float] = run(Run([launch], out, ["client.json"], _LIMIT)).files[0]
    return found
