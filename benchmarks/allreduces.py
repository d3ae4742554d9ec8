"""The part that times an all-reduce alone: ours beside Gloo and, with the peers, Open MPI."""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from benchmarks.peers import PEERS
from benchmarks.running import ROOT, Launch, Run, RunFailed, run
from benchmarks.settings import Settings

SCRIPTS = ROOT / "benchmarks" / "micro"
# Ranks, floats, repeats for each of the settings', and what is asked for against Gloo and against Open MPI.
CASES = ((2, 648_010, 100, "5 / 8", "1 / 1.5"), (4, 25_000_000, 1, "2.2 / 3", ""))


def measure_allreduce(settings: Settings) -> dict[str, Any]:
    """Seconds of an all-reduce, by round and by way."""
    rows = []
    for ranks, floats, times, against_gloo, against_mpi in CASES:
        count = min(floats, settings.most_floats)
        repeats = max(5, settings.repeats * times // max(1, settings.rounds))
        rounds: dict[str, list[float]] = {}
        for number in range(settings.rounds):
            for name, taken in _round(settings, ranks, count, repeats).items():
                rounds.setdefault(name, []).append(median(taken))
                settings.say(f"ring, {ranks} ranks, round {number + 1}: {name} {1e3 * median(taken):.3f} ms")
        rows.append(
            {
                "ranks": ranks,
                "bytes": 4 * count,
                "seconds": rounds,
                "required": {"gloo": against_gloo, "openmpi": against_mpi},
            }
        )
    return {"kind": "allreduce", "rows": rows}


def _round(settings: Settings, ranks: int, floats: int, repeats: int) -> dict[str, list[float]]:
    out = settings.out()
    # Long enough that the scheduler has found a core for each rank, on all sides alike.
    warmup = max(3, repeats // 2)
    words = ("--floats", str(floats), "--repeats", str(repeats), "--warmup", str(warmup), "--out", str(out))
    taken: dict[str, list[float]] = {}
    for way in ("argosy", "gloo"):
        here = settings.out()
        options = (*words[:-1], str(here), "--count", str(ranks), "--way", way)
        script = (sys.executable, str(SCRIPTS / "allreduce.py"), *options)
        launches = [Launch(f"rank-{index}", (*script, "--index", str(index))) for index in range(ranks)]
        expected = [f"worker-{index}.json" for index in range(ranks)]
        taken |= run(Run(launches, here, expected, settings.start_limit)).files[0]
    if settings.with_peers:
        mpirun = (str(PEERS / "bin" / "mpirun"), "--allow-run-as-root", "--oversubscribe", "-n", str(ranks))
        program = (str(PEERS / "bin" / "python"), str(SCRIPTS / "allreduce_mpi.py"), *words)
        try:
            taken |= run(
                Run([Launch("mpi", (*mpirun, *program))], out, ["mpi.json"], settings.start_limit)
            ).files[0]
        except RunFailed as failure:
            settings.say(f"ring, {ranks} ranks: Open MPI failed: {failure}")
    return taken
