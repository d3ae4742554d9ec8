"""What processors may make of a program: the orders in which others see its reads and writes.

The tests record what `Counters` really does, and look at all orders that a processor allows. So they see what
can go wrong on a processor that is not at hand, as long as it is as its makers say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Event:
    """A step of a program: a read or write of a place, or half of a lock."""

    kind: Literal["read", "write", "acquire", "release"]
    place: int = -1
    value: int = 0


class Words:
    """Numbers that note who reads and writes them."""

    def __init__(self, count: int) -> None:
        self.numbers = [0] * count
        self.trace: list[Event] = []

    def __getitem__(self, place: int) -> int:
        self.trace.append(Event("read", place))
        return self.numbers[place]

    def __setitem__(self, place: int, value: int) -> None:
        self.trace.append(Event("write", place, value))
        self.numbers[place] = value


class Lock:
    """A lock that notes when it is taken and given back."""

    def __init__(self, trace: list[Event]) -> None:
        self._trace = trace

    def __enter__(self) -> None:
        self._trace.append(Event("acquire"))

    def __exit__(self, *_: Any) -> None:
        self._trace.append(Event("release"))


def weak(first: Event, second: Event) -> bool:
    """Whether ARM and RISC-V keep two steps in the order of the program."""
    if first.place == second.place >= 0:
        return True
    return (
        first.kind == "acquire"
        or second.kind == "release"
        or (first.kind, second.kind) == ("release", "acquire")
    )


def x86(first: Event, second: Event) -> bool:
    """Whether x86 does: all but a write before a read. Nothing passes the taking of a lock."""
    return (first.kind, second.kind) != ("write", "read") or first.place == second.place


def orders(program: Sequence[Event], keeps: Any) -> set[tuple[Event, ...]]:
    """The orders in which the reads and writes of a program may be seen."""
    after = [{n for n in range(m) if keeps(program[n], program[m])} for m in range(len(program))]
    found = set()
    reach: list[tuple[frozenset[int], tuple[Event, ...]]] = [(frozenset(), ())]
    seen = set(reach)
    while reach:
        done, order = reach.pop()
        if len(done) == len(program):
            found.add(order)
        for number, event in enumerate(program):
            if number not in done and after[number] <= done:
                step = (done | {number}, (*order, event) if event.place >= 0 else order)
                if step not in seen:
                    seen.add(step)
                    reach.append(step)
    return found


def outcomes(first: Sequence[Event], second: Sequence[Event], keeps: Any) -> set[tuple[tuple[int, int], ...]]:
    """What the reads of two programs that run at once may give: (place, value) of each, by program."""
    found = set()
    for one in orders(first, keeps):
        for other in orders(second, keeps):
            for mixed in _mixed([(0, event) for event in one], [(1, event) for event in other]):
                memory: dict[int, int] = {}
                reads: list[list[tuple[int, int]]] = [[], []]
                for program, event in mixed:
                    if event.kind == "write":
                        memory[event.place] = event.value
                    else:
                        reads[program].append((event.place, memory.get(event.place, 0)))
                found.add((*sorted(reads[0]), *sorted(reads[1])))
    return found


def _mixed(one: list[Any], other: list[Any]) -> Iterator[list[Any]]:
    if not one or not other:
        yield one + other
        return
    for rest in _mixed(one[1:], other):
        yield [one[0], *rest]
    for rest in _mixed(one, other[1:]):
        yield [other[0], *rest]
