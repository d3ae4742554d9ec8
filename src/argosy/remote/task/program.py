"""A captured step on its task: compiled at its first replay into a program, a list of segments.

To the scheduler a segment is one work item among others. It waits for what it reads and for the readers of
what it writes, whether they belong to uncaptured work or to other captured steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from argosy.protocol.remote_work import Packing
from argosy.remote.operations.kernel import Kernel
from argosy.remote.plan.dependencies import Dependencies, PreviousStep
from argosy.remote.plan.segments import Segment, cut_segments
from argosy.remote.task.scheduler import Storage, Value, WorkItem
from argosy.remote.task.segment_calls import ReplayState
from argosy.remote.task.segment_executor import SegmentExecutor
from argosy.remote.transport.tensor_codec import unpack

if TYPE_CHECKING:
    from argosy.remote.task.client_session import ClientSession

Pattern = tuple[int, ...]


class CapturedStep:
    """The instructions of a captured step, the values that outlive it (`kept`), and its operations."""

    def __init__(
        self,
        records: list[Any],
        feeds: Collection[int],
        kept: Collection[int],
        templates: dict[int, Kernel],
    ) -> None:
        self._records = records
        self._feeds = feeds
        self._kept = kept
        self._templates = templates
        self._externals = list(Dependencies(records, templates, feeds, {}).externals)
        self._programs: dict[tuple[Pattern, Pattern], Program] = {}

    def replay(
        self,
        session: ClientSession,
        turn: int,
        feeds: Sequence[Any],
        binds: Sequence[Any],
        outputs: Sequence[Any],
        frames: Sequence[torch.Tensor],
    ) -> None:
        """Run the step again, with these values."""
        values = session.values
        for alias, value in binds:
            values[alias] = values[value]
        given = [values[number] for number in self._externals]
        for alias, _ in binds:
            del values[alias]
        first: dict[int, int] = {}
        pattern = tuple(first.setdefault(id(each.storage), place) for place, each in enumerate(given))
        returned = tuple(number for number, _ in outputs)
        program = self._programs.get((pattern, returned))
        if program is None:
            shared = {n: self._externals[place] for n, place in zip(self._externals, pattern, strict=True)}
            analyse = partial(Dependencies, self._records, self._templates, self._feeds, shared)
            program = self._programs[pattern, returned] = Program(analyse, returned, self._kept)
        made = program.start(session, turn, given, feeds, frames)
        for number in self._kept:
            if number in made:
                values[number] = made[number]
        for number, name in outputs:
            values[name] = made[number]

    def take_counts(self) -> Counter[str]:
        """How often each operation has run since the last call."""
        total: Counter[str] = Counter()
        for program in self._programs.values():
            for executor in (*program.executors, *program.former_executors):
                for name in executor.counted:
                    total[name] += executor.runs
                executor.runs = 0
        return total


class Program:
    """The segments of a captured step, for one way in which its values share memory."""

    def __init__(
        self,
        analyse: Callable[[PreviousStep], Dependencies],
        returned: Collection[int],
        kept: Collection[int],
    ) -> None:
        self._analyse = analyse
        step = self._step = analyse(PreviousStep())
        self._returned = {step.register_of[number] for number in returned}
        self._kept = {step.register_of[number] for number in kept if number in step.register_of}
        self._costs = [0.0] * len(step.items)
        self._from_outside = step.from_outside
        self._is_measured = False
        self.former_executors: list[SegmentExecutor] = []  # earlier replays may still use them
        self._make_executors()

    def _make_executors(self, side_by_side: bool = False) -> None:
        step, outside = self._step, self._from_outside
        costs = self._costs if self._is_measured else ()
        segments = cut_segments(step, self._returned, self._kept, costs, side_by_side)
        self.executors = [SegmentExecutor(step, each, self._costs, self._is_measured) for each in segments]
        self._random = [any(item.index in step.random for item in each.items) for each in segments]
        self._reads = [
            [*each.loads, *(outside[memory] for memory in sorted(each.reads) if memory in outside)]
            for each in segments
        ]
        self._writes = [[outside[memory] for memory in each.writes if memory in outside] for each in segments]
        self._visible = _VisibleValues.of(step, segments, {*self._returned, *self._kept}, outside)

    def _rebuild(self, session: ClientSession, given: Sequence[Value]) -> None:
        """Cut the step again, now that the cost of each operation is known."""
        self._is_measured = True
        self.former_executors = self.executors
        tensors = zip(self._step.externals, (each.tensor for each in given), strict=True)
        sizes = {number: tensor.nbytes for number, tensor in tensors if tensor is not None}
        self._step = self._analyse(self._step.as_previous_step(sizes, {*self._returned, *self._kept}))
        self._make_executors(session.scheduler.has_helpers)

    def start(
        self,
        session: ClientSession,
        turn: int,
        given: Sequence[Value],
        feeds: Sequence[Any],
        frames: Sequence[torch.Tensor],
    ) -> dict[int, Value]:
        """Begin a replay; returns the values that are visible outside, by their numbers in the recording."""
        if not self._is_measured and all(each.is_measured for each in self.executors):
            self._rebuild(session, given)
        step = self._step
        registers: list[Any] = [None] * len(step.registers)
        values = dict(zip(step.externals.values(), given, strict=True))
        for number, packing, first, count in feeds:
            fed = unpack(msgspec.convert(packing, Packing), frames[first : first + count])
            registers[step.feeds[number]] = fed
        for number, task, register in step.received:
            values[register] = session.exchange.expect(number, task, turn)
        replay = ReplayState(session, turn, registers, values)
        work = [WorkItem(partial(each.run, replay), each.heavy) for each in self.executors]
        visible = self._make_visible(values, registers, work)
        for number, (executor, item) in enumerate(zip(self.executors, work, strict=True)):
            reads = [values[register] for register in self._reads[number]]
            writes = [values[register] for register in self._writes[number]]
            if self._random[number]:
                reads.append(session.randomness)
                writes.append(session.randomness)
            session.submit(item, reads, writes, after=[work[each] for each in executor.segment.after])
        return visible

    def _make_visible(
        self, values: dict[int, Value], registers: list[Any], work: Sequence[WorkItem]
    ) -> dict[int, Value]:
        """Make a value of each visible register, and note the segments that its users must wait for."""
        known, visible = self._visible, {}
        storages = {memory: Storage() for memory in known.memories}
        for register, number, memory, outside in known.registers:
            if register not in values:
                value = values[register] = Value(
                    storages[memory] if outside is None else values[outside].storage
                )
                value.tensor = registers[register]  # set if it was fed
            visible[number] = values[register]
        for item, made, read, written in zip(work, known.made, known.read, known.written, strict=True):
            for register in made:
                values[register].maker = item
            for memory in read:
                storages[memory].readers.append(item)
            for memory in written:
                storages[memory].writer = item
        return visible


@dataclass(frozen=True)
class _VisibleValues:
    """What is visible of a program outside, found once: the registers, each with its number, its memory and a
    register from outside in the same memory; the memories that are new; and what each segment makes, reads
    and writes of them.
    """

    registers: list[tuple[int, int, int, int | None]]
    memories: list[int]
    made: list[list[int]]
    read: list[list[int]]
    written: list[list[int]]

    @classmethod
    def of(
        cls,
        step: Dependencies,
        segments: Sequence[Segment],
        registers: set[int],
        from_outside: dict[int, int],
    ) -> _VisibleValues:
        """`from_outside`: of each memory that the step does not make, a register."""
        memory_of = {register: step.registers[register].memory for register in registers}
        new = {memory for memory in memory_of.values() if memory not in from_outside}
        made = [[register for register in each.makes if register in registers] for each in segments]
        filled = [{memory_of[register] for register in each} for each in made]
        return cls(
            [
                (s, step.registers[s].number, memory, from_outside.get(memory))
                for s, memory in memory_of.items()
            ],
            sorted(new),
            made,
            [sorted(each.reads & new) for each in segments],
            [sorted((each.writes | some) & new) for each, some in zip(segments, filled, strict=True)],
        )
