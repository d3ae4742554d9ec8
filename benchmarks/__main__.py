"""The command line of the benchmarks. A part's result replaces the old one of that part in results.json."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks import (
    allreduces,
    data,
    exchanges,
    hosts,
    machine,
    memory,
    peers,
    plots,
    remotes,
    report,
    tables,
    training,
)
from benchmarks.catalogue import BY_NAME
from benchmarks.contenders.job import write_whole
from benchmarks.networks import NETWORKS
from benchmarks.running import ROOT
from benchmarks.settings import Settings

PARTS: dict[str, Callable[[Settings], dict[str, Any]]] = {
    **{name: partial(training.measure_network, network=name) for name in NETWORKS},
    "start": training.measure_start,
    "alone": exchanges.measure_alone,
    "copies": exchanges.measure_copies,
    "saving": exchanges.measure_saving,
    "size": exchanges.measure_sizes,
    "workers": exchanges.measure_workers,
    "servers": exchanges.measure_servers,
    "allreduce": allreduces.measure_allreduce,
    "hosts": hosts.measure_hosts,
    "remote": remotes.measure_remote,
    "memory": memory.measure_memory,
}
# Enough to see that everything works, and nothing to quote.
QUICK = {
    "rounds": 1,
    "seconds": 2.0,
    "warmup": 0.5,
    "pairs": 2,
    "repeats": 5,
    "most_floats": 2_560_000,
    "memory_seconds": 6.0,
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)), metavar="[PART]...")
@click.option("--with-peers", is_flag=True, help="Also the peers, in .venv-peers/, made if need be.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Interleaved rounds.")
@click.option("--seconds", type=float, default=8.0, show_default=True, help="Measured time of a run.")
@click.option("--warmup", type=float, default=2.0, show_default=True, help="Time before that.")
@click.option("--pairs", type=click.IntRange(1), default=12, show_default=True, help="Pairs of `alone`.")
@click.option("--repeats", type=click.IntRange(1), default=30, show_default=True, help="Pairs of `copies`.")
@click.option("--memory-seconds", type=float, default=300.0, show_default=True, help="Length of `memory`.")
@click.option("--only", type=click.Choice(list(BY_NAME)), multiple=True, help="Only this contender; repeat.")
@click.option("--quick", is_flag=True, help="A smoke test: one short round, nothing to quote.")
@click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    default=ROOT / "benchmarks" / "results",
    help="Where results.json, results.md and the plots go.",
)
def main(parts: tuple[str, ...], results: Path, quick: bool, only: tuple[str, ...], **asked: Any) -> None:
    """Measure Argosy: every PART, or those named.

    \b
    mnist wide conv    training, all contenders (peers with --with-peers)
    start              from command to first step
    alone              a cluster of one against plain PyTorch
    copies             25 M parameters against plain copies
    saving             a checkpoint every 100 steps against none
    size workers servers    a push and pull as these grow
    allreduce          the ring alone, beside Gloo (and Open MPI, with the peers)
    hosts              the ring between two hosts at 1 Gbit (network namespaces: needs root)
    remote             one client that drives tasks, beside a TensorFlow session
    memory             of each task, and its growth
    """
    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave by the way that ends what was started
    if asked["with_peers"]:
        peers.make()
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="argosy-bench-") as scratch:
        directory = Path(scratch)
        data.prepare(directory, list(NETWORKS))
        numbers = {**asked, **(QUICK if quick else {})}
        say = partial(console.print, style="dim", markup=False, highlight=False)
        settings = Settings(directory, directory, say, only=frozenset(only), **numbers)
        failed = [name for name in parts or PARTS if not _measure(name, settings, results, console)]
    if failed:
        console.print(f"failed: {', '.join(failed)}", style="red")
        sys.exit(1)


def _measure(name: str, settings: Settings, results: Path, console: Console) -> bool:
    """Measure one part and write everything that is known by now; whether it went well."""
    facts = machine.facts()
    try:
        result = PARTS[name](settings)
    except Exception as error:  # one part's failure must not lose the others' hours
        console.print(f"{name}: {error}", style="red", markup=False)
        return False
    numbers = ("rounds", "seconds", "warmup", "pairs", "repeats", "memory_seconds")
    result |= {"machine": facts, "settings": {key: getattr(settings, key) for key in numbers}}
    path = results / "results.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known[name] = result
    ordered = {part: known[part] for part in PARTS if part in known}
    write_whole(path, ordered)
    (results / "results.md").write_text(report.page(ordered), encoding="utf-8")
    plots.draw_all({name: result}, results)
    for table in report.tables(result):
        Console().print(tables.on_screen(table))
    return True


if __name__ == "__main__":
    main()
