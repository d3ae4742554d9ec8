"""Another tree against this one: is it slower? Pairs of clusters that are alive at once and take turns.

    git worktree add ../before HEAD~1
    .venv/bin/python -m benchmarks.compare ../before --pairs 10

The speed of a machine that is shared moves by a quarter within minutes, so two runs after each other say
little. Here both sides run the same script at the same time, each while the other one waits, and change turns
twice a second; the ratio of a pair is the median over its turns. A new pair has new processes, and so another
layout of memory. The scripts are this tree's on both sides; `argosy` is each tree's own.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.figures import NoWindow, Spread, Window, bootstrap, rate_in, ratios
from benchmarks.micro.turns import OVER
from benchmarks.running import ROOT, Launch, Run, run

SCRIPT = ROOT / "benchmarks" / "micro" / "turns.py"
_TURN = 0.5
_SETTLE = 0.1  # of a turn: what was begun in the other's is over by then
_NOBODY = 254
_START_LIMIT = 120.0


@dataclass(frozen=True)
class Kind:
    """What is compared: how a side is started, and the files that its workers write."""

    what: str
    options: tuple[str, ...]
    workers: int = 2


KINDS = {
    "async": Kind("train", ("--ps", "2", "--workers", "2", "--mode", "async")),
    "sync": Kind("train", ("--ps", "2", "--workers", "2", "--mode", "sync")),
    "ring": Kind("train", ("--ps", "0", "--workers", "2", "--mode", "ring")),
    "allreduce": Kind("allreduce", (), workers=1),
    "captured": Kind("captured", ("--serve", "--ps", "1", "--workers", "1"), workers=1),
}


def launches(kind: Kind, tree: Path, side: int, gate: Path, out: Path) -> list[Launch]:
    """One side: `argosy run` of that tree, or the ranks of an all-reduce."""
    python = ("env", f"PYTHONPATH={tree / 'src'}{os.pathsep}{ROOT}", sys.executable)
    words = ("--what", kind.what, "--gate", str(gate), "--side", str(side), "--out", str(out))
    if kind.options:
        command = (*python, "-m", "argosy.cli", "run", "--threads", "1", *kind.options, str(SCRIPT), *words)
        return [Launch(f"side-{side}", command)]
    return [
        Launch(f"side-{side}-{index}", (*python, str(SCRIPT), *words, "--index", str(index), "--count", "2"))
        for index in range(2)
    ]


class Referee(threading.Thread):
    """Waits until both sides have made a step, then gives them turns, and ends both."""

    def __init__(self, gate: Path, ready: Sequence[Path], turns: int) -> None:
        super().__init__(name="referee", daemon=True)
        self.windows: tuple[list[Window], list[Window]] = ([], [])
        with gate.open("r+b") as file:
            self._turn = mmap.mmap(file.fileno(), 1)
        self._ready = ready
        self._turns = turns

    def run(self) -> None:
        """Each side in turn; who begins changes, so that neither always follows the other."""
        deadline = time.monotonic() + _START_LIMIT
        while not all(path.exists() for path in self._ready) and time.monotonic() < deadline:
            time.sleep(0.05)
        for number in range(self._turns):
            for side in (0, 1) if number % 2 else (1, 0):
                self._say(side)
                began = time.monotonic()
                time.sleep(_TURN)
                self.windows[side].append(Window(began + _SETTLE, time.monotonic()))
                self._say(_NOBODY)
                time.sleep(_SETTLE)
        self._say(OVER)

    def _say(self, turn: int) -> None:
        self._turn[0] = turn


def measure_pair(kind: Kind, trees: Sequence[Path], turns: int, scratch: Path) -> float:
    """The speed of the first tree over that of the second, as the median over the turns of one pair."""
    out = Path(tempfile.mkdtemp(dir=scratch))
    gate = out / "gate"
    gate.write_bytes(bytes([_NOBODY]))
    sides = [out / str(side) for side in range(len(trees))]
    plan: list[Launch] = []
    for side, (tree, folder) in enumerate(zip(trees, sides, strict=True)):
        folder.mkdir()
        plan += launches(kind, tree, side, gate, folder)
    ready = [folder / f"ready-{index}" for folder in sides for index in range(kind.workers)]
    expected = [f"{folder.name}/worker-{index}.json" for folder in sides for index in range(kind.workers)]
    referee = Referee(gate, ready, turns)
    referee.start()
    limit = _START_LIMIT + turns * 4 * (_TURN + _SETTLE)
    files = run(Run(plan, out, expected, limit, grace=10.0 if kind.options else 0.0)).files
    referee.join()
    stamps = [[file["stamps"] for file in files[s * kind.workers : (s + 1) * kind.workers]] for s in (0, 1)]
    rates = [
        [sum(rate_in(worker, window) for worker in stamps[side]) for window in referee.windows[side]]
        for side in (0, 1)
    ]
    return bootstrap(ratios(*rates), samples=100).median


def compare(name: str, trees: Sequence[Path], pairs: int, turns: int, scratch: Path) -> Spread:
    """Fresh pairs; which tree is started first changes."""
    found: list[float] = []
    while len(found) < pairs:
        forward = len(found) % 2 == 0
        try:
            ratio = measure_pair(KINDS[name], trees if forward else trees[::-1], turns, scratch)
        except NoWindow as reason:
            click.echo(f"{name}: a pair is left out, {reason}", err=True)
            continue
        found.append(ratio if forward else 1 / ratio)
        click.echo(f"{name}, pair {len(found)}: {found[-1]:.3f}", err=True)
    return bootstrap(found)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("tree", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--what", type=click.Choice(list(KINDS)), multiple=True, help="Only this; repeat. All by default."
)
@click.option("--pairs", type=click.IntRange(1), default=10, show_default=True, help="Fresh pairs of each.")
@click.option(
    "--turns", type=click.IntRange(1), default=8, show_default=True, help="Turns of a side in a pair."
)
def main(tree: Path, what: tuple[str, ...], pairs: int, turns: int) -> None:
    """The speed of this tree over that of TREE, another checkout: 1.02 is two per cent faster."""
    trees = (ROOT, tree.resolve())
    with tempfile.TemporaryDirectory(prefix="argosy-compare-") as scratch:
        for name in what or KINDS:
            found = compare(name, trees, pairs, turns, Path(scratch))
            click.echo(f"{name:10} {found.median:.3f} ({found.low:.3f}–{found.high:.3f}), {pairs} pairs")


if __name__ == "__main__":
    main()
