"""What each instruction of a captured step depends on: values from elsewhere, and earlier instructions.

Pure: no tensors, no threads. Values that are views of one another share a memory; reads and writes of a
memory keep the order of the program. `needs` holds, as bits, the values from other tasks that an item depends
on, directly or through others. In a step that repeats, a large value that the previous replay updates late
counts as such a value too.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from argosy.errors import WireError
from argosy.remote.operations.instructions import DROP, EXPECT, SEND, WIDTHS
from argosy.remote.operations.kernel import Kernel

# A value of more bytes than this that one replay updates has a bit of its own in the next.
_LARGE = 128 * 1024


@dataclass
class PlanItem:
    """An operation, or a value that is sent (`kernel` is None). A value is known by its register, an index
    into a list that each replay has of its own.
    """

    index: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    kernel: Kernel | None = None
    floats: tuple[float, ...] = ()
    site: int = -1
    task: str = ""
    there: int = 0
    needs: int = 0  # the values from elsewhere that it depends on, one bit each
    after: set[int] = field(default_factory=set)  # the items that must run before it
    ready_after: int = -1  # of a value that is sent: the item after which it can leave


@dataclass
class MemoryUse:
    """A memory so far: the needs of its content and of its uses, its last writer, and the readers since."""

    made: int = 0
    touched: int = 0
    writer: int = -1
    readers: list[int] = field(default_factory=list)


@dataclass
class PlanRegister:
    """A value of the step."""

    number: int
    memory: int
    needs: int = 0
    maker: int = -1


@dataclass(frozen=True)
class PreviousStep:
    """What a replay has to know of the one before it: the values that it may still be writing, each with a
    bit for what it waits for; and the items that may wait until it is complete.
    """

    unfinished: Mapping[int, int] = field(default_factory=dict)
    deferrable: Collection[int] = ()


_NONE = PreviousStep()


class Dependencies:
    """The instructions of one task's share of a step."""

    def __init__(
        self,
        records: Sequence[Any],
        templates: Mapping[int, Kernel],
        feeds: Collection[int],
        shared: Mapping[int, int],
        previous: PreviousStep = _NONE,
    ) -> None:
        """`shared` maps values from before the step that share memory to the same number."""
        self.items: list[PlanItem] = []
        self.registers: list[PlanRegister] = [PlanRegister(-1, -1)]
        self.memories: list[MemoryUse] = []
        self.register_of: dict[int, int] = {}
        self.feeds: dict[int, int] = {}
        self.received: list[
            tuple[int, str, int]
        ] = []  # the number, task and register of values from other tasks
        self.externals: dict[int, int] = {}  # values from before the step
        self.random: set[int] = set()
        self._shared = shared
        self._previous = previous
        self._all_unfinished = functools.reduce(operator.or_, previous.unfinished.values(), 0)
        self._external_memory: dict[int, int] = {}
        self._random_state = self._new_memory()
        for number in feeds:
            self.feeds[number] = self._new_register(number, self._new_memory())
        self._read(records, templates)

    @property
    def from_outside(self) -> dict[int, int]:
        """Of each memory that the step does not make itself, a register."""
        registers = (*self.externals.values(), *(register for _, _, register in self.received))
        return {self.registers[register].memory: register for register in registers}

    def _new_memory(self) -> int:
        self.memories.append(MemoryUse())
        return len(self.memories) - 1

    def _new_register(self, number: int, memory: int) -> int:
        self.registers.append(PlanRegister(number, memory))
        self.register_of[number] = len(self.registers) - 1
        return len(self.registers) - 1

    def _find(self, number: int) -> int:
        """The register of a value. One that no instruction has made is from before the step."""
        if (found := self.register_of.get(number)) is not None:
            return found
        shared = self._shared.get(number, number)
        if shared not in self._external_memory:
            self._external_memory[shared] = self._new_memory()
        register = self.externals[number] = self._new_register(number, self._external_memory[shared])
        if bit := self._previous.unfinished.get(number, 0):
            self.registers[register].needs = bit
            memory = self.memories[self._external_memory[shared]]
            memory.made |= bit
            memory.touched |= bit
        return register

    def _read(self, records: Sequence[Any], templates: Mapping[int, Kernel]) -> None:
        position = 0
        while position < len(records):
            code = records[position]
            if code >= 0:
                kernel = templates[code]
                self._read_operation(kernel, records[position : position + kernel.width])
                position += kernel.width
                continue
            record = records[position + 1 : position + WIDTHS[code]]
            position += WIDTHS[code]
            if code == EXPECT:
                register = self._new_register(record[0], self._new_memory())
                bit = 1 << len(self.received)
                self.received.append((record[0], record[1], register))
                self.registers[register].needs = bit
                memory = self.memories[self.registers[register].memory]
                memory.made = memory.touched = bit
            elif code == SEND:
                value, task, there, site = record
                item = PlanItem(len(self.items), (self._find(value),), site=site, task=task, there=there)
                self._add(item)
                sent = self.registers[item.inputs[0]]
                item.ready_after = max(sent.maker, self.memories[sent.memory].writer)
            elif code != DROP:
                raise WireError(f"captured step: expected an instruction that can be repeated, got {code}")

    def _read_operation(self, kernel: Kernel, record: Sequence[Any]) -> None:
        last = 3 + kernel.inputs
        inputs = tuple(self._find(number) for number in record[3:last])
        item = PlanItem(
            len(self.items),
            inputs,
            writes=tuple(inputs[each] for each in kernel.mutates),
            kernel=kernel,
            floats=tuple(record[last:]),
            site=record[1],
        )
        self._add(item)
        made = []
        joint = self._new_memory() if kernel.joint else None
        for number in range(kernel.outputs):
            view = kernel.views[number]
            if view < 0:
                memory = self._new_memory() if joint is None else joint
            else:
                memory = self.registers[inputs[view]].memory
            register = self._new_register(record[2] + number, memory)
            self.registers[register].needs, self.registers[register].maker = item.needs, item.index
            if view < 0:
                fresh = self.memories[memory]
                fresh.made = fresh.touched = item.needs
                fresh.writer = item.index
            made.append(register)
        item.outputs = tuple(made)

    def _add(self, item: PlanItem) -> None:
        """Find what an item needs and comes after, as in a program that runs line by line."""
        reads = {self.registers[register].memory for register in item.inputs}
        writes = {self.registers[register].memory for register in item.writes}
        if item.kernel is not None and item.kernel.random:
            reads.add(self._random_state)
            writes.add(self._random_state)
            self.random.add(item.index)
        for register in item.inputs:
            item.needs |= self.registers[register].needs
            item.after.add(self.registers[register].maker)
        for each in reads:
            item.needs |= self.memories[each].made
            item.after.add(self.memories[each].writer)
        if item.index in self._previous.deferrable:
            item.needs |= self._all_unfinished
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

    def as_previous_step(self, sizes: Mapping[int, int], wanted: Collection[int]) -> PreviousStep:
        """What the next replay of the same step has to know. Small values share one bit, because they are not
        worth a segment each. An item is deferrable if no message and no `wanted` register depends on it.
        """
        memories = {number: self.registers[register].memory for number, register in self.externals.items()}
        writers = {number: self.memories[memory].writer for number, memory in memories.items()}
        needs = {number: self.items[writer].needs for number, writer in writers.items() if writer >= 0}
        bytes_for: dict[int, int] = {}
        for number, each in needs.items():
            bytes_for[each] = bytes_for.get(each, 0) + sizes.get(number, 0)
        large = [each for each, size in bytes_for.items() if each and size > _LARGE]
        bits = {each: 1 << (len(self.received) + 1 + place) for place, each in enumerate(large)}
        unfinished = {
            number: bits.get(each, 1 << len(self.received)) for number, each in needs.items() if each
        }
        return PreviousStep(unfinished, self._deferrable(unfinished, wanted))

    def _deferrable(self, unfinished: Collection[int], wanted: Collection[int]) -> set[int]:
        awaited = {self.registers[register].maker for register in wanted}
        deferrable: set[int] = set()
        for item in reversed(self.items):
            if item.kernel is None or item.index in awaited:
                awaited |= {item.index, *item.after}
            elif not item.needs and any(
                self.registers[register].number in unfinished for register in item.inputs
            ):
                deferrable.add(item.index)
        return deferrable
