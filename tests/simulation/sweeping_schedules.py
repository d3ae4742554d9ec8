"""Many schedules: `sweeping_schedules.py simulated|real FIRST COUNT`. Ends with 1 at the first that fails."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import breaking
from invariants import run
from test_schedules import MODES, scenarios

SAY_EVERY = 60.0


def simulated(first: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every scenario of every mode in turn, with a seed of its own."""
    all_of_them = [
        (f"{mode}, {name}", scenario)
        for mode, value in MODES.items()
        for name, scenario in scenarios(value).items()
    ]
    for seed, (name, scenario) in zip(itertools.count(first), itertools.cycle(all_of_them), strict=False):
        yield f"{name}, seed {seed}", partial(run, scenario, seed)


def real(first: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """The real client and servers."""
    breaking.hurry()
    for seed in itertools.count(first):
        yield f"seed {seed}", partial(breaking.play, seed)


def main(kind: str, first: int, count: int) -> None:
    """Play them, and say once a minute how many are done."""
    began = said = time.monotonic()
    source = {"simulated": simulated, "real": real}[kind](first)
    for done, (name, play) in enumerate(itertools.islice(source, count), start=1):
        try:
            play()
        except Exception as error:
            raise AssertionError(f"{name}: {error!r}") from error
        if (now := time.monotonic()) - said > SAY_EVERY or done == count:
            said = now
            print(f"{done} schedules, {done / (now - began):.0f} a second", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
