"""A captured step on its task: looked through at its first replay, and turned into rows that repeat.

For the graph a row is one step among others: it waits for what it reads and for the readers of what it
writes, of uncaptured work and of other captured steps alike.
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
from argosy.remote.operations.kernel import Compiled
from argosy.remote.plan.dependencies import Analysis, Sequel
from argosy.remote.task.runs import Replay
from argosy.remote.task.scheduler import Group, Step, Value
from argosy.remote.task.segment_executor import Row
from argosy.remote.transport.tensor_codec import unpack

if TYPE_CHECKING:
    from argosy.remote.task.client_session import Session

Pattern = tuple[int, ...]


class Plan:
    """A captured step: its records, the values that outlive it, and the operations that it knows."""

    def __init__(
        self,
        records: list[Any],
        feeds: Collection[int],
        kept: Collection[int],
        templates: dict[int, Compiled],
    ) -> None:
        self._records = records
        self._feeds = feeds
        self._kept = kept
        self._templates = templates
        self._externals = list(Analysis(records, templates, feeds, {}).externals)
        self._programs: dict[tuple[Pattern, Pattern], Program] = {}

    def replay(
        self,
        session: Session,
        turn: int,
        feeds: Sequence[Any],
        binds: Sequence[Any],
        outputs: Sequence[Any],
        frames: Sequence[torch.Tensor],
    ) -> None:
        """Do it once more."""
        values = session.values
        for alias, value in binds:
            values[alias] = values[value]
        given = [values[number] for number in self._externals]
        for alias, _ in binds:
            del values[alias]
        first: dict[int, int] = {}
        pattern = tuple(first.setdefault(id(each.group), place) for place, each in enumerate(given))
        returned = tuple(number for number, _ in outputs)
        program = self._programs.get((pattern, returned))
        if program is None:
            alike = {n: self._externals[place] for n, place in zip(self._externals, pattern, strict=True)}
            analyse = partial(Analysis, self._records, self._templates, self._feeds, alike)
            program = self._programs[pattern, returned] = Program(analyse, returned, self._kept)
        made = program.start(session, turn, given, feeds, frames)
        for number in self._kept:
            if number in made:
                values[number] = made[number]
        for number, name in outputs:
            values[name] = made[number]

    def count(self) -> Counter[str]:
        """What has run since the last time, as operations and how often."""
        total: Counter[str] = Counter()
        for program in self._programs.values():
            for row in (*program.rows, *program.former_rows):
                for name in row.counted:
                    total[name] += row.runs
                row.runs = 0
        return total


class Program:
    """The rows of a plan, for values that share memory in one way."""

    def __init__(
        self,
        analyse: Callable[[Sequel], Analysis],
        returned: Collection[int],
        kept: Collection[int],
    ) -> None:
        self._analyse = analyse
        analysis = self._analysis = analyse(Sequel())
        self._returned = {analysis.slot_of[number] for number in returned}
        self._kept = {analysis.slot_of[number] for number in kept if number in analysis.slot_of}
        self._costs = [0.0] * len(analysis.items)
        outside = (*analysis.externals.values(), *(slot for _, _, slot in analysis.parcels))
        # For memory from outside, a slot that it came in.
        self._came_in = {analysis.slots[slot].memory: slot for slot in outside}
        self._settled = False
        self.former_rows: list[Row] = []  # replays that began with them may still be under way
        self._make_rows()

    def _make_rows(self, side_by_side: bool = False) -> None:
        analysis, known = self._analysis, self._settled
        segments = analysis.segments(self._returned, self._kept, self._costs if known else (), side_by_side)
        self.rows = [Row(analysis, segment, self._costs, known) for segment in segments]
        self._random = [any(item.index in analysis.random for item in each.items) for each in segments]
        self._reads = [
            [*each.loads, *(self._came_in[m] for m in sorted(each.touches) if m in self._came_in)]
            for each in segments
        ]
        self._writes = [[self._came_in[m] for m in each.alters if m in self._came_in] for each in segments]
        wanted = {*self._returned, *self._kept}
        self._showing = _Showing.of(analysis, self.rows, wanted, self._came_in)

    def _settle(self, session: Session, given: Sequence[Value]) -> None:
        """What each operation costs is known: from now on in rows that are made for it."""
        self._settled = True
        self.former_rows = self.rows
        tensors = zip(self._analysis.externals, (each.tensor for each in given), strict=True)
        sizes = {number: tensor.nbytes for number, tensor in tensors if tensor is not None}
        self._analysis = self._analyse(self._analysis.sequel(sizes, {*self._returned, *self._kept}))
        self._make_rows(session.graph.has_helpers)

    def start(
        self,
        session: Session,
        turn: int,
        given: Sequence[Value],
        feeds: Sequence[Any],
        frames: Sequence[torch.Tensor],
    ) -> dict[int, Value]:
        """Begin a replay; the values that are to be seen outside, by their numbers in the recording."""
        if not self._settled and all(row.is_known for row in self.rows):
            self._settle(session, given)
        analysis = self._analysis
        frame: list[Any] = [None] * len(analysis.slots)
        values = dict(zip(analysis.externals.values(), given, strict=True))
        for number, packing, first, count in feeds:
            made = unpack(msgspec.convert(packing, Packing), frames[first : first + count])
            frame[analysis.feeds[number]] = made
        for number, task, slot in analysis.parcels:
            values[slot] = session.mail.await_parcel(number, task, turn)
        replay = Replay(session, turn, frame, values)
        steps = [_step(row, replay) for row in self.rows]
        seen = self._show(values, frame, steps)
        for number, (row, step) in enumerate(zip(self.rows, steps, strict=True)):
            reads = [values[slot] for slot in self._reads[number]]
            writes = [values[slot] for slot in self._writes[number]]
            if self._random[number]:
                reads.append(session.randomness)
                writes.append(session.randomness)
            session.submit(step, reads, writes, after=[steps[each] for each in row.segment.after])
        return seen

    def _show(self, values: dict[int, Value], frame: list[Any], steps: Sequence[Step]) -> dict[int, Value]:
        """Values for those slots that are to be seen outside, with the rows that others must wait for."""
        show, seen = self._showing, {}
        groups = {memory: Group() for memory in show.memories}
        for slot, number, memory, came_in in show.slots:
            if slot not in values:
                value = values[slot] = Value(groups[memory] if came_in is None else values[came_in].group)
                value.tensor = frame[slot]  # of what was fed
            seen[number] = values[slot]
        for step, made, touched, altered in zip(steps, show.made, show.touched, show.altered, strict=True):
            for slot in made:
                values[slot].maker = step
            for memory in touched:
                groups[memory].readers.append(step)
            for memory in altered:
                groups[memory].writer = step
        return seen


@dataclass(frozen=True)
class _Showing:
    """What is to be seen of a program outside, found out once: `slots` with their number, memory, and a slot
    from outside in the same memory; the `memories` that are new; and what each row makes, touches and alters
    of them.
    """

    slots: list[tuple[int, int, int, int | None]]
    memories: list[int]
    made: list[list[int]]
    touched: list[list[int]]
    altered: list[list[int]]

    @classmethod
    def of(
        cls, analysis: Analysis, rows: Sequence[Row], wanted: set[int], came_in: dict[int, int]
    ) -> _Showing:
        """`wanted`: the slots; `came_in`: of memory from outside, a slot."""
        memory_of = {slot: analysis.slots[slot].memory for slot in wanted}
        new = {memory for memory in memory_of.values() if memory not in came_in}
        segments = [row.segment for row in rows]
        made = [[slot for slot in each.makes if slot in wanted] for each in segments]
        written = [{memory_of[slot] for slot in slots} for slots in made]
        return cls(
            [(s, analysis.slots[s].number, memory, came_in.get(memory)) for s, memory in memory_of.items()],
            sorted(new),
            made,
            [sorted(each.touches & new) for each in segments],
            [sorted((each.alters | wrote) & new) for each, wrote in zip(segments, written, strict=True)],
        )


def _step(row: Row, replay: Replay) -> Step:
    return Step(lambda: row.run(replay), row.heavy)
