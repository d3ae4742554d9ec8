"""A segment of a captured step, made ready: a list of calls that one thread makes, one after the other.

The first few times each call is checked and timed; after that it is the bare operation with its arguments in
place. What goes wrong in the middle does not stop a row: what does not depend on it is done, as ever.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from argosy.protocol.remote_work import Fault
from argosy.protocol.remote_work import Item as Sent
from argosy.remote.operations.kernel import HEAVY, Compiled
from argosy.remote.plan.dependencies import Analysis, Segment
from argosy.remote.plan.direct_sends import Berth, find_berths
from argosy.remote.plan.items import Item
from argosy.remote.plan.priorities import QUICK
from argosy.remote.task import segment_calls as calls
from argosy.remote.task.resident_parameters import may_moor
from argosy.remote.task.runs import Call, Frame, Replay, Run

# So many times a row is checked and timed.
_TRIALS = 3


class Row:
    """See the module. A replay runs it once; replays that could meet in it come one after another."""

    def __init__(self, analysis: Analysis, segment: Segment, costs: list[float], is_known: bool) -> None:
        self.segment = segment
        self.runs = 0  # without checks; an operation that is checked counts itself
        self.counted: list[str] = []  # what such a run has run
        self.heavy = False  # worth a thread beside others
        self._analysis = analysis
        self._memory_of = [slot.memory for slot in analysis.slots]
        outside = (*analysis.externals.values(), *(slot for _, _, slot in analysis.parcels))
        came_in = {self._memory_of[slot]: slot for slot in outside}
        self._altered = [came_in[memory] for memory in segment.alters if memory in came_in]
        self._costs = costs
        self._trials_left = 0 if is_known else _TRIALS
        self._careful = [calls.careful(item) for item in segment.items]
        self._calls: list[Call] = []
        self._owners: list[int] = []  # of each call, the item that it belongs to
        self._build()

    @property
    def is_known(self) -> bool:
        """Whether its calls have been checked and timed."""
        return not self._trials_left

    def _build(self) -> None:
        """The calls: what waits to be sent leaves before it is written to, before what takes very long, and
        if it is much before what takes long.
        """
        self._calls, self._owners, self.counted = [], [], []
        berths = find_berths(self._analysis) if self.is_known else {}
        cost = sum(self._costs[item.index] for item in self.segment.items)
        self.heavy = self.is_known and cost > HEAVY
        leaving = {berth.send.index: berth for berth in berths.values()}
        waiting: set[int] = set()
        grad: bool | None = None

        def add(call: Call) -> None:
            self._calls.append(call)
            self._owners.append(position)

        for position, item in enumerate(self.segment.items):
            dies = self.segment.dies.get(position, ())
            if item.compiled is None:
                # What this row goes on to write to would have to be taken back before anybody has read it.
                stays = self._memory_of[item.inputs[0]] not in self.segment.alters
                if self.is_known and stays and may_moor(self._analysis, item):
                    add(calls.moored_sender(item))
                else:
                    add(calls.sender(item, leaving.get(item.index)))
                waiting.add(self._memory_of[item.inputs[0]])
                if dies:
                    add(calls.forgetter(dies))
                continue
            written = {self._memory_of[slot] for slot in item.writes}
            if written & waiting or (waiting and self.is_known and self._costs[item.index] > HEAVY):
                add(calls.flush)
                waiting.clear()
            elif waiting and (not self.is_known or self._costs[item.index] > QUICK):
                add(calls.flush_much)
            if item.compiled.grad is not grad:
                grad = item.compiled.grad
                add(calls.set_grad if grad else calls.set_no_grad)
            if not self.is_known:
                add(self._careful[position])
            else:
                add(self._operation(item, item.compiled, dies, berths.get(item.index)))

    def _operation(self, item: Item, compiled: Compiled, dies: Sequence[int], berth: Berth | None) -> Call:
        bare = compiled.bare(item.floats)
        if bare is None:
            return calls.then_forget(calls.careful(item), dies)
        self.counted.append(compiled.name)
        if berth is not None and bare.is_single:
            return calls.berthed(item, bare, dies, berth)
        return calls.bare(item, bare, dies)

    def run(self, replay: Replay) -> None:
        """Do it all; what others may see of it is there afterwards."""
        run, frame = Run(replay), replay.frame
        self._load(replay)
        position, begin = 0, 0
        if replay.faults or replay.spoilt:
            self._limp(replay, run, 0)
        else:
            try:
                if self._trials_left:
                    self._try_out(frame, run)
                else:
                    for call in self._calls:
                        call(frame, run)
                        position += 1
                    self.runs += 1
            except _Failed as failed:
                begin = self._fail(replay, failed.position, failed.error)
            except Exception as error:
                begin = self._fail(replay, position, error)
            if begin:
                self._limp(replay, run, begin)
        run.close()
        self._publish(replay)

    def _try_out(self, frame: Frame, run: Run) -> None:
        spent = [0.0] * len(self.segment.items)
        for position, call in enumerate(self._calls):
            began = time.perf_counter()
            try:
                call(frame, run)
            except Exception as error:
                raise _Failed(position, error) from None
            spent[self._owners[position]] = time.perf_counter() - began
        first = self._trials_left == _TRIALS
        for item, seconds in zip(self.segment.items, spent, strict=True):
            self._costs[item.index] = seconds if first else min(seconds, self._costs[item.index])
        self._trials_left -= 1
        if not self._trials_left:
            self._build()

    def _load(self, replay: Replay) -> None:
        frame, values = replay.frame, replay.values
        for slot in self.segment.loads:
            value = values[slot]
            fault = value.fault or value.group.fault
            if fault is not None:
                replay.faults[slot] = fault
            frame[slot] = value.tensor
        for slot in self._altered:
            values[slot].group.before_writing()
        for slot in self.segment.takes:
            values[slot].tensor = None  # what was lent for it goes back when this row is done with it

    def _publish(self, replay: Replay) -> None:
        values, frame = replay.values, replay.frame
        for slot in self.segment.makes:
            if (value := values.get(slot)) is not None:
                value.tensor = frame[slot]
                value.fault = replay.faults.get(slot)
        if replay.spoilt:
            for slot, value in values.items():
                if (fault := replay.spoilt.get(self._memory_of[slot])) is not None:
                    value.group.fault = fault

    # --- when something is wrong --------------------------------------------------------------------------
    def _fail(self, replay: Replay, position: int, error: Exception) -> int:
        """Note what a call's exception spoils; the position of the next item."""
        owner = self._owners[position]
        item = self.segment.items[owner]
        name = "send" if item.compiled is None else item.compiled.name
        self._spoil(replay, item, replay.session.faults.add(name, item.site, error))
        return owner + 1

    def _spoil(self, replay: Replay, item: Item, fault: Fault) -> None:
        for slot in item.outputs:
            replay.faults[slot] = fault
        for slot in item.writes:
            replay.spoilt[self._memory_of[slot]] = fault

    def _limp(self, replay: Replay, run: Run, begin: int) -> None:
        """From an item on, do what depends on nothing that is wrong."""
        run.flush()  # what waits to be sent may be written to next, and no call that flushes is made here
        for item, call in zip(self.segment.items[begin:], self._careful[begin:], strict=True):
            wrong = [
                replay.faults.get(slot) or replay.spoilt.get(self._memory_of[slot]) for slot in item.inputs
            ]
            fault = next((each for each in wrong if each is not None), None)
            if fault is not None:
                if item.compiled is None:
                    run.post(item.task, Sent(item.there, replay.turn, None, fault), [])
                else:
                    self._spoil(replay, item, fault)
                continue
            try:
                call(replay.frame, run)
                run.flush()
            except Exception as error:
                name = "send" if item.compiled is None else item.compiled.name
                self._spoil(replay, item, replay.session.faults.add(name, item.site, error))


class _Failed(Exception):
    """The call at this position has raised."""

    def __init__(self, position: int, error: Exception) -> None:
        super().__init__(position)
        self.position = position
        self.error = error
