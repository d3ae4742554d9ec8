"""A captured step cut into segments: items that one thread runs in a row.

Pure. All items with the same needs become one segment. It is ready as soon as each of its items would be, so
nothing waits longer than it must, and inside a segment nothing is scheduled. A value for another task is sent
as soon as it is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from argosy.remote.plan.dependencies import Dependencies, PlanItem
from argosy.remote.plan.priorities import Priorities

# Branches that take longer than this, in seconds, are worth a thread each.
_WORTH_A_THREAD = 1e-3


@dataclass
class Segment:
    """Items that run in a row."""

    items: list[PlanItem]
    after: list[int] = field(default_factory=list)  # the segments that must run before it
    loads: list[int] = field(default_factory=list)  # registers that are filled from outside
    reads: set[int] = field(default_factory=set)  # memories
    writes: set[int] = field(default_factory=set)
    makes: list[int] = field(default_factory=list)  # registers
    frees: dict[int, list[int]] = field(default_factory=dict)  # item -> registers that are not used after it
    releases: list[int] = field(default_factory=list)  # the received values among them


def cut_segments(
    step: Dependencies,
    returned: Collection[int],
    kept: Collection[int],
    costs: Sequence[float] = (),
    side_by_side: bool = False,
) -> list[Segment]:
    """The segments of a step, each after those that it depends on. A returned value ends a segment, because
    the client may be waiting for it. With the `costs` of the items and `side_by_side`, long branches get
    segments of their own.
    """
    cuts = {step.registers[register].maker for register in returned}
    needs_of = _needs(step, set(returned))
    branch = _branches(step, costs, needs_of) if side_by_side else [0] * len(step.items)
    passed: dict[int, int] = {}
    groups: dict[tuple[int, int, int, int], list[PlanItem]] = {}
    for item in _in_order(step):
        needs = needs_of[item.index]
        key = (needs.bit_count(), passed.get(needs, 0), needs, branch[item.index])
        groups.setdefault(key, []).append(item)
        if item.index in cuts:
            passed[needs] = passed.get(needs, 0) + 1
    if costs:
        priorities = Priorities(step.items, costs)
        groups = {key: priorities.order(items) for key, items in groups.items()}
    made = [Segment(groups[key]) for key in sorted(groups, key=lambda key: key[:2])]
    _connect(step, made, {*returned, *kept})
    return made


def _needs(step: Dependencies, returned: set[int]) -> list[int]:
    """What each item waits for. A view waits with its users if they all wait for the same."""
    result = [item.needs for item in step.items]
    users: list[set[int]] = [set() for _ in step.items]
    for item in reversed(step.items):
        light = item.kernel is not None and item.kernel.light
        if light and len(users[item.index]) == 1 and returned.isdisjoint(item.outputs):
            result[item.index] = users[item.index].pop()
        for before in item.after:
            users[before].add(result[item.index])
    return result


def _in_order(step: Dependencies) -> Iterator[PlanItem]:
    """The order of the program, with each message moved forward to where its value is computed."""
    leaving: dict[int, list[PlanItem]] = {}
    for item in step.items:
        if item.kernel is None:
            leaving.setdefault(item.ready_after, []).append(item)
    yield from leaving.get(-1, ())
    for item in step.items:
        if item.kernel is not None:
            yield item
            yield from leaving.get(item.index, ())


def _branches(step: Dependencies, costs: Sequence[float], needs: Sequence[int]) -> list[int]:
    """For each item its connected component among items with the same needs; 0 if it is not worth a
    thread.
    """
    root = list(range(len(step.items)))

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    for item in step.items:
        for before in item.after:
            if needs[before] == needs[item.index]:
                root[find(item.index)] = find(before)
    total = [0.0] * len(step.items)
    for item, cost in zip(step.items, costs, strict=True):
        total[find(item.index)] += cost
    return [each if total[each := find(i)] > _WORTH_A_THREAD else 0 for i in range(len(step.items))]


def _connect(step: Dependencies, made: Sequence[Segment], visible: Collection[int]) -> None:
    where = {item.index: number for number, segment in enumerate(made) for item in segment.items}
    users: dict[int, set[int]] = {}
    received = {register for _, _, register in step.received}
    outside = {*step.externals.values(), *received}
    before: list[set[int]] = []  # of each segment, those that are done when it begins
    for number, segment in enumerate(made):
        after: set[int] = set()
        for item in segment.items:
            after.update(where[each] for each in item.after)
            for register in (*item.inputs, *item.outputs):
                users.setdefault(register, set()).add(number)
        read = {register for item in segment.items for register in item.inputs}
        written = {register for item in segment.items for register in item.writes}
        segment.after = sorted(after - {number})
        before.append({each for earlier in segment.after for each in (earlier, *before[earlier])})
        segment.loads = sorted(read & outside)
        segment.reads = {step.registers[register].memory for register in read}
        segment.writes = {step.registers[register].memory for register in written}
        segment.makes = [register for item in segment.items for register in item.outputs]
    for number, segment in enumerate(made):
        last: dict[int, int] = {}
        for position, item in enumerate(segment.items):
            for register in (*item.inputs, *item.outputs):
                if register not in visible and users[register] <= before[number] | {number}:
                    last[register] = position
        for register, position in last.items():
            segment.frees.setdefault(position, []).append(register)
        segment.releases = sorted(received & last.keys())
