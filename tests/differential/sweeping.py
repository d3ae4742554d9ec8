"""Goes through programs seed by seed: for `make test`, for `make soak`, and by hand.

python tests/differential/sweeping.py 0 500                      # 500 programs from seed 0 on
python tests/differential/sweeping.py 7 1 --features ring,skip   # one program that has these
python tests/differential/sweeping.py 0 200 --find "ring: the mean of flags"
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what tests share, if this is run by hand

from checking import differences, report
from generating import generate
from known import KNOWN
from remote_programs import REMOTE_FEATURES, generate_remote, smaller_remote
from remote_running import remote_differences, render_remote
from remote_situations import REMOTE_SITUATIONS
from shrinking import shrink_by
from situations import SITUATIONS

# Every so many programs, one of remote devices: they take longer than the others.
REMOTE_EVERY = 8


@dataclass(frozen=True)
class Kind:
    """A kind of program: how it is made, checked and told."""

    generate: Callable[[int, Collection[str]], Any]
    differences: Callable[[Any], list[str]]
    report: Callable[[Any], str]
    situations: Mapping[str, tuple[Callable[[Any], bool], tuple[str, ...]]]

    def met(self, program: Any) -> list[str]:
        """The situations that a program comes upon."""
        return [name for name, (is_in, _) in self.situations.items() if is_in(program)]


def _remote_report(program: Any) -> str:
    smallest = shrink_by(program, smaller_remote, lambda each: bool(remote_differences(each, 5.0)))
    lines = [f"# {line}" for line in remote_differences(smallest, 5.0)[:6]]
    return "\n".join([render_remote(smallest), *lines])


TRAINING = Kind(generate, differences, report, SITUATIONS)
REMOTE = Kind(generate_remote, remote_differences, _remote_report, REMOTE_SITUATIONS)


def programs(first: int, count: int) -> Iterator[tuple[Kind, Any]]:
    """`count` programs, from seed `first` on, without those of which it is known that they differ."""
    seed = first
    while count:
        kind = REMOTE if seed % REMOTE_EVERY == REMOTE_EVERY - 1 else TRAINING
        program = kind.generate(seed, ())
        if not any(name in KNOWN for name in kind.met(program)):
            yield kind, program
            count -= 1
        seed += 1


def sweep(first: int, count: int, every: int = 0) -> str:
    """The report of the first program that differs, or nothing. `every`: a line of progress so often."""
    began = time.monotonic()
    for number, (kind, program) in enumerate(programs(first, count), start=1):
        if found := kind.differences(program):
            return f"seed {program.seed}: {found[0]}\n\n{kind.report(program)}"
        if every and (number % every == 0 or number == count):
            rate = number / (time.monotonic() - began)
            print(f"{number} of {count} programs, {rate:.1f} a second, no difference", flush=True)
    return ""


def _one(seed: int, features: Collection[str]) -> str:
    kind = REMOTE if set(features) & {"remote", *(REMOTE_FEATURES & {"captured"})} else TRAINING
    program = kind.generate(seed, features)
    print(f"seed {seed}: {', '.join(kind.met(program)) or 'no situation'}")
    return kind.report(program) if kind.differences(program) else ""


def _find(first: int, count: int, name: str) -> None:
    """A seed that comes upon a situation and on no other one, by each of its sets of features."""
    kind = TRAINING if name in SITUATIONS else REMOTE
    for words in kind.situations[name][1]:
        for seed in range(first, first + count):
            program = kind.generate(seed, words.split(", "))
            if kind.met(program) == [name] and (found := kind.differences(program)):
                print(f"seed {seed} with {words}: {found[0]}\n{kind.report(program)}", flush=True)
                break


def main() -> int:
    """By hand."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--features", default="")
    parser.add_argument("--find", default="")
    words = parser.parse_args()
    if words.find:
        _find(words.first, words.count, words.find)
        return 0
    if words.features:
        features = words.features.split(",")
        found = "\n".join(_one(seed, features) for seed in range(words.first, words.first + words.count))
    else:
        found = sweep(words.first, words.count, every=max(1, min(500, words.count // 20)))
    print(found.strip())
    return 1 if found.strip() else 0


if __name__ == "__main__":
    sys.exit(main())
