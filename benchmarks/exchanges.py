"""Parts that look at the exchange alone: by size, workers and servers, against copies; a cluster of one."""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from benchmarks.catalogue import Training, argosy_run
from benchmarks.figures import common_window, percentile, rate_in
from benchmarks.running import ROOT, Launch, Outcome, Run, run
from benchmarks.settings import Settings

SCRIPTS = ROOT / "benchmarks" / "micro"
MNIST_FLOATS = 648_010
WIDE_FLOATS = 25_000_000
SIZES = (256, 2_560, 25_600, 256_000, 2_560_000, 25_000_000, 100_000_000)
WORKERS = (1, 2, 4, 8)
SERVERS = (1, 2, 3, 4)


def _exchange(settings: Settings, floats: int, servers: int, workers: int) -> Outcome:
    out = settings.out()
    words = ("--floats", str(floats), "--seconds", str(settings.seconds), "--out", str(out))
    launch = argosy_run(SCRIPTS / "exchange.py", words, servers, workers, "async")
    expected = [f"worker-{index}.json" for index in range(workers)]
    return run(Run([launch], out, expected, settings.seconds + 2 * settings.start_limit))


def measure_sizes(settings: Settings) -> dict[str, Any]:
    """One worker, one server: the cost of a push and pull as the parameters grow."""
    rows = []
    for floats in SIZES:
        if floats > settings.most_floats:
            continue
        file = _exchange(settings, floats, 1, 1).files[0]
        cost, plain = median(file["costs"]), median(file["plain"])
        late = percentile(file["costs"], 0.9)
        rows.append(
            {"bytes": 4 * floats, "cost": cost, "p90": late, "plain": plain, "count": len(file["costs"])}
        )
        settings.say(
            f"size, {4 * floats:,} bytes: {1000 * cost:.3f} ms, two plain copies {1000 * plain:.3f} ms"
        )
    return {"kind": "size", "rows": rows}


def _measure_shape(settings: Settings, servers: int, workers: int) -> dict[str, Any]:
    files = _exchange(settings, MNIST_FLOATS, servers, workers).files
    window = common_window([file["stamps"] for file in files], 0.0)
    rate = sum(rate_in(file["stamps"], window) for file in files)
    costs = [cost for file in files for cost in file["costs"]]
    settings.say(f"{servers} servers, {workers} workers: {rate:.0f} exchanges/s")
    return {
        "servers": servers,
        "workers": workers,
        "rate": rate,
        "cost": median(costs),
        "p90": percentile(costs, 0.9),
    }


def measure_workers(settings: Settings) -> dict[str, Any]:
    """Two servers and a growing number of workers."""
    return {"kind": "shape", "rows": [_measure_shape(settings, 2, workers) for workers in WORKERS]}


def measure_servers(settings: Settings) -> dict[str, Any]:
    """Two workers and a growing number of servers."""
    return {"kind": "shape", "rows": [_measure_shape(settings, servers, 2) for servers in SERVERS]}


def measure_copies(settings: Settings) -> dict[str, Any]:
    """25 M parameters through a server on this host, against plain copies in one process."""
    floats = min(WIDE_FLOATS, settings.most_floats)
    rows = {}
    for what, workers, mode in (("bare", 2, ("sync", "--aggregate", "1")), ("adam", 1, ("async",))):
        out = settings.out()
        words = ("--what", what, "--floats", str(floats), "--repeats", str(settings.repeats))
        launch = argosy_run(SCRIPTS / "copies.py", (*words, "--out", str(out)), 1, workers, *mode)
        file = run(Run([launch], out, ["worker-0.json"], 3 * settings.start_limit)).files[0]
        rows[what] = file
        ratio = median(file["costs"]) / median(file["plain"])
        settings.say(f"copies, {what}: {1000 * median(file['costs']):.1f} ms, {ratio:.2f} x the plain ones")
    return {"kind": "copies", "floats": floats, "rows": rows}


def measure_saving(settings: Settings) -> dict[str, Any]:
    """The MNIST run with a save every 100 steps against itself without, in turns; and the copy at a cut."""
    jobs = {}
    for mode in ("sync", "async"):
        out = settings.out()
        words = (*Training("mnist", settings.data, out, 0.0).words, "--directory", str(out / "runs"))
        words = (*words, "--pairs", str(settings.pairs))
        launch = argosy_run(SCRIPTS / "saving.py", words, 2, 2, mode)
        limit = 30.0 * settings.pairs + settings.start_limit
        file = jobs[mode] = run(Run([launch], out, ["worker-0.json"], limit)).files[0]
        ratio = median(file["rates"]["with"]) / median(file["rates"]["without"])
        settings.say(f"saving, {mode}: {ratio:.3f} of the speed without")
    return {"kind": "saving", "jobs": jobs}


def measure_alone(settings: Settings) -> dict[str, Any]:
    """A cluster of one and the plain loop, a pair a process."""
    pairs = []
    for number in range(settings.pairs):
        out = settings.out()
        words = (*Training("mnist", settings.data, out, settings.seconds).words, "--index", str(number))
        launch = Launch("alone", (sys.executable, str(SCRIPTS / "alone.py"), *words))
        file = run(Run([launch], out, ["worker-0.json"], settings.seconds + settings.start_limit)).files[0]
        pairs.append({name: median(rates) for name, rates in file.items()})
        settings.say(
            f"alone, pair {number + 1}: {pairs[-1]['argosy'] / pairs[-1]['plain']:.3f} of the plain loop"
        )
    return {"kind": "alone", "pairs": pairs}
