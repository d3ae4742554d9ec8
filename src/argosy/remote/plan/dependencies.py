"""A captured step, looked through once: which of its records can run in a row, and what each row waits for.

Pure: no tensors, no threads. All records that need the same values from other tasks, those included that they
need by way of others, become one *segment*. It is ready when its records would be, so nothing waits longer
than it has to, and inside a segment nothing is scheduled at all. What is sent to another task leaves as soon
as it is made. A step that repeats follows upon itself: what is large and updated late in it counts as
something to wait for in the next.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.errors import WireError
from argosy.remote.operations.instructions import DROP, EXPECT, SEND, WIDTHS
from argosy.remote.operations.kernel import Compiled
from argosy.remote.plan.items import Item
from argosy.remote.plan.priorities import Haste

# What is updated for the next step is read by itself there if it is larger than this, in bytes.
_LARGE = 128 * 1024
# Branches that take longer than this, in seconds, are worth a thread each.
_WORTH_A_THREAD = 1e-3


@dataclass
class Memory:
    """What slots share that are views of one another."""

    made: int = 0
    touched: int = 0
    writer: int = -1
    readers: list[int] = field(default_factory=list)


@dataclass
class Slot:
    """A value of the step."""

    number: int
    memory: int
    needs: int = 0
    maker: int = -1


@dataclass
class Segment:
    """Records that run in a row. `after`: the segments before it; `loads`: slots that are filled from
    outside.
    """

    items: list[Item]
    after: list[int] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    touches: set[int] = field(default_factory=set)  # memory that it reads or writes to
    alters: set[int] = field(default_factory=set)
    makes: list[int] = field(default_factory=list)
    # After which item which slots are needed no more; and the parcels among them.
    dies: dict[int, list[int]] = field(default_factory=dict)
    takes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Sequel:
    """What a step that repeats knows of itself: which values from before it the step before may still be
    writing to, with what has to come for that, as one bit; and the items that may wait until all of them are
    there.
    """

    late: Mapping[int, int] = field(default_factory=dict)
    patient: Collection[int] = ()


_FIRST = Sequel()


class Analysis:
    """The records of one task's share of a step."""

    def __init__(
        self,
        records: Sequence[Any],
        templates: Mapping[int, Compiled],
        feeds: Collection[int],
        alike: Mapping[int, int],
        sequel: Sequel = _FIRST,
    ) -> None:
        """`alike` gives values from before the step that share memory the same number."""
        self.items: list[Item] = []
        self.slots: list[Slot] = [Slot(-1, -1)]
        self.memories: list[Memory] = []
        self.slot_of: dict[int, int] = {}
        self.feeds: dict[int, int] = {}
        self.parcels: list[tuple[int, str, int]] = []
        self.externals: dict[int, int] = {}
        self._alike = alike
        self._sequel = sequel
        self._all_late = functools.reduce(operator.or_, sequel.late.values(), 0)
        self._shared: dict[int, int] = {}
        self._randomness = self._memory()
        self.random: set[int] = set()
        for number in feeds:
            self.feeds[number] = self._slot(number, self._memory())
        self._read(records, templates)

    # --- reading ------------------------------------------------------------------------------------------
    def _memory(self) -> int:
        self.memories.append(Memory())
        return len(self.memories) - 1

    def _slot(self, number: int, memory: int) -> int:
        self.slots.append(Slot(number, memory))
        self.slot_of[number] = len(self.slots) - 1
        return len(self.slots) - 1

    def _find(self, number: int) -> int:
        """The slot of a value; one that nothing here has made was there before."""
        if (found := self.slot_of.get(number)) is not None:
            return found
        alike = self._alike.get(number, number)
        if alike not in self._shared:
            self._shared[alike] = self._memory()
        slot = self.externals[number] = self._slot(number, self._shared[alike])
        if bit := self._sequel.late.get(number, 0):
            self.slots[slot].needs = bit
            memory = self.memories[self._shared[alike]]
            memory.made |= bit
            memory.touched |= bit
        return slot

    def _read(self, records: Sequence[Any], templates: Mapping[int, Compiled]) -> None:
        position = 0
        while position < len(records):
            code = records[position]
            if code >= 0:
                compiled = templates[code]
                self._read_operation(compiled, records[position : position + compiled.width])
                position += compiled.width
                continue
            record = records[position + 1 : position + WIDTHS[code]]
            position += WIDTHS[code]
            if code == EXPECT:
                slot = self._slot(record[0], self._memory())
                bit = 1 << len(self.parcels)
                self.parcels.append((record[0], record[1], slot))
                self.slots[slot].needs = bit
                memory = self.memories[self.slots[slot].memory]
                memory.made = memory.touched = bit
            elif code == SEND:
                value, task, there, site = record
                item = Item(len(self.items), (self._find(value),), site=site, task=task, there=there)
                self._add(item)
                slots, memories = self.slots[item.inputs[0]], self.memories
                item.home = max(slots.maker, memories[slots.memory].writer)
            elif code != DROP:
                raise WireError(f"step: expected what can be repeated, got record {code}")

    def _read_operation(self, compiled: Compiled, record: Sequence[Any]) -> None:
        last = 3 + compiled.inputs
        inputs = tuple(self._find(number) for number in record[3:last])
        item = Item(
            len(self.items),
            inputs,
            writes=tuple(inputs[each] for each in compiled.mutates),
            compiled=compiled,
            floats=tuple(record[last:]),
            site=record[1],
        )
        self._add(item)
        made = []
        joint = self._memory() if compiled.joint else None
        for number in range(compiled.outputs):
            view = compiled.views[number]
            if view < 0:
                memory = self._memory() if joint is None else joint
            else:
                memory = self.slots[inputs[view]].memory
            slot = self._slot(record[2] + number, memory)
            self.slots[slot].needs, self.slots[slot].maker = item.needs, item.index
            if view < 0:
                fresh = self.memories[memory]
                fresh.made = fresh.touched = item.needs
                fresh.writer = item.index
            made.append(slot)
        item.outputs = tuple(made)

    def _add(self, item: Item) -> None:
        """What an item needs and comes after: as in a program that runs line by line."""
        reads = {self.slots[slot].memory for slot in item.inputs}
        writes = {self.slots[slot].memory for slot in item.writes}
        if item.compiled is not None and item.compiled.random:
            reads.add(self._randomness)
            writes.add(self._randomness)
            self.random.add(item.index)
        for slot in item.inputs:
            item.needs |= self.slots[slot].needs
            item.after.add(self.slots[slot].maker)
        for each in reads:
            item.needs |= self.memories[each].made
            item.after.add(self.memories[each].writer)
        if item.index in self._sequel.patient:
            item.needs |= self._all_late
        for each in writes:
            item.needs |= self.memories[each].touched
            item.after.update(self.memories[each].readers)
        for each in reads - writes:
            self.memories[each].touched |= item.needs
            self.memories[each].readers.append(item.index)
        for each in writes:
            memory = self.memories[each]
            memory.made = memory.touched = item.needs
            memory.writer, memory.readers = item.index, []
        item.after.discard(-1)
        self.items.append(item)

    def sequel(self, sizes: Mapping[int, int], wanted: Collection[int]) -> Sequel:
        """For when the step follows upon itself. Values of few bytes have one bit in common, as they are not
        worth a segment each. Patient is what leads to no message and to nothing `wanted`: others wait for
        what is left of the step before.
        """
        memories = {number: self.slots[slot].memory for number, slot in self.externals.items()}
        writers = {number: self.memories[memory].writer for number, memory in memories.items()}
        needs = {number: self.items[writer].needs for number, writer in writers.items() if writer >= 0}
        bytes_for: dict[int, int] = {}
        for number, each in needs.items():
            bytes_for[each] = bytes_for.get(each, 0) + sizes.get(number, 0)
        large = [each for each, size in bytes_for.items() if each and size > _LARGE]
        bits = {each: 1 << (len(self.parcels) + 1 + place) for place, each in enumerate(large)}
        late = {number: bits.get(each, 1 << len(self.parcels)) for number, each in needs.items() if each}
        return Sequel(late, self._patient(late, wanted))

    def _patient(self, late: Collection[int], wanted: Collection[int]) -> set[int]:
        awaited = {self.slots[slot].maker for slot in wanted}
        patient: set[int] = set()
        for item in reversed(self.items):
            if item.compiled is None or item.index in awaited:
                awaited |= {item.index, *item.after}
            elif not item.needs and any(self.slots[slot].number in late for slot in item.inputs):
                patient.add(item.index)
        return patient

    # --- cutting ------------------------------------------------------------------------------------------
    def segments(
        self,
        returned: Collection[int],
        kept: Collection[int],
        costs: Sequence[float] = (),
        side_by_side: bool = False,
    ) -> list[Segment]:
        """The step in segments, each after those that it comes after. A value that is returned ends one, as
        somebody may wait for it. With the `costs` of the items, long branches get segments of their own.
        """
        cuts = {self.slots[slot].maker for slot in returned}
        needs_of = self._needs(set(returned))
        branch = self._branches(costs, needs_of) if side_by_side else [0] * len(self.items)
        passed: dict[int, int] = {}
        groups: dict[tuple[int, int, int, int], list[Item]] = {}
        for item in self._in_order():
            needs = needs_of[item.index]
            key = (needs.bit_count(), passed.get(needs, 0), needs, branch[item.index])
            groups.setdefault(key, []).append(item)
            if item.index in cuts:
                passed[needs] = passed.get(needs, 0) + 1
        if costs:
            haste = Haste(self.items, costs)
            groups = {key: haste.order(items) for key, items in groups.items()}
        made = [Segment(groups[key]) for key in sorted(groups, key=lambda key: key[:2])]
        self._connect(made, {*returned, *kept})
        return made

    def _needs(self, returned: set[int]) -> list[int]:
        """What each item waits for. A mere view waits with those who use it, if all wait for the same."""
        result = [item.needs for item in self.items]
        users: list[set[int]] = [set() for _ in self.items]
        for item in reversed(self.items):
            light = item.compiled is not None and item.compiled.light
            if light and len(users[item.index]) == 1 and returned.isdisjoint(item.outputs):
                result[item.index] = users[item.index].pop()
            for before in item.after:
                users[before].add(result[item.index])
        return result

    def _in_order(self) -> Iterator[Item]:
        """The program, with what is sent moved forward to where it is made."""
        leaving: dict[int, list[Item]] = {}
        for item in self.items:
            if item.compiled is None:
                leaving.setdefault(item.home, []).append(item)
        yield from leaving.get(-1, ())
        for item in self.items:
            if item.compiled is not None:
                yield item
                yield from leaving.get(item.index, ())

    def _branches(self, costs: Sequence[float], needs: Sequence[int]) -> list[int]:
        """Items that hang together, among those with the same needs: 0 for all that is not worth a
        thread.
        """
        root = list(range(len(self.items)))

        def find(index: int) -> int:
            while root[index] != index:
                root[index] = root[root[index]]
                index = root[index]
            return index

        for item in self.items:
            for before in item.after:
                if needs[before] == needs[item.index]:
                    root[find(item.index)] = find(before)
        total = [0.0] * len(self.items)
        for item, cost in zip(self.items, costs, strict=True):
            total[find(item.index)] += cost
        return [each if total[each := find(i)] > _WORTH_A_THREAD else 0 for i in range(len(self.items))]

    def _connect(self, made: Sequence[Segment], visible: Collection[int]) -> None:
        where = {item.index: number for number, segment in enumerate(made) for item in segment.items}
        users: dict[int, set[int]] = {}
        parcels = {slot for _, _, slot in self.parcels}
        outside = {*self.externals.values(), *parcels}
        before: list[set[int]] = []  # of each segment, those that are done when it begins
        for number, segment in enumerate(made):
            after: set[int] = set()
            for item in segment.items:
                after.update(where[each] for each in item.after)
                for slot in (*item.inputs, *item.outputs):
                    users.setdefault(slot, set()).add(number)
            read = {slot for item in segment.items for slot in item.inputs}
            written = {slot for item in segment.items for slot in item.writes}
            segment.after = sorted(after - {number})
            before.append({each for earlier in segment.after for each in (earlier, *before[earlier])})
            segment.loads = sorted(read & outside)
            segment.touches = {self.slots[slot].memory for slot in read}
            segment.alters = {self.slots[slot].memory for slot in written}
            segment.makes = [slot for item in segment.items for slot in item.outputs]
        for number, segment in enumerate(made):
            last: dict[int, int] = {}
            for position, item in enumerate(segment.items):
                for slot in (*item.inputs, *item.outputs):
                    if slot not in visible and users[slot] <= before[number] | {number}:
                        last[slot] = position
            for slot, position in last.items():
                segment.dies.setdefault(position, []).append(slot)
            segment.takes = sorted(parcels & last.keys())
