"""Runs one segment of a captured step: a list of calls that one thread makes in order.

The first few times each call is checked and timed; after that it is the bare operation. An error does not
stop a segment: all that does not depend on it still runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from argosy.protocol.remote_work import Fault
from argosy.protocol.remote_work import Item as SentValue
from argosy.remote.operations.kernel import HEAVY, Kernel
from argosy.remote.plan.dependencies import Dependencies, PlanItem
from argosy.remote.plan.direct_sends import DirectSend, find_direct_sends, may_reside
from argosy.remote.plan.priorities import QUICK
from argosy.remote.plan.segments import Segment
from argosy.remote.task import segment_calls as calls
from argosy.remote.task.segment_calls import Call, Registers, ReplayState, SegmentRun

# The number of runs in which a segment is checked and timed.
_TRIALS = 3


class SegmentExecutor:
    """Each replay runs it once; replays that both use it run one after the other."""

    def __init__(self, step: Dependencies, segment: Segment, costs: list[float], is_measured: bool) -> None:
        self.segment = segment
        self.runs = 0  # without checks; an operation that is checked counts itself
        self.counted: list[str] = []  # the operations of such a run
        self.heavy = False  # worth a thread of its own
        self._step = step
        self._memory_of = [register.memory for register in step.registers]
        from_outside = step.from_outside
        self._written = [from_outside[memory] for memory in segment.writes if memory in from_outside]
        self._costs = costs
        self._trials_left = 0 if is_measured else _TRIALS
        self._checked = [calls.run_checked(item) for item in segment.items]
        self._calls: list[Call] = []
        self._owners: list[int] = []  # of each call, the position of its item
        self._build()

    @property
    def is_measured(self) -> bool:
        """Whether its calls have been checked and timed."""
        return not self._trials_left

    def _build(self) -> None:
        """Make the calls. What was collected is sent before it is written to, before a heavy operation, and,
        if it is much, before an operation that is not quick.
        """
        self._calls, self._owners, self.counted = [], [], []
        direct_sends = find_direct_sends(self._step) if self.is_measured else {}
        cost = sum(self._costs[item.index] for item in self.segment.items)
        self.heavy = self.is_measured and cost > HEAVY
        by_message = {direct.send.index: direct for direct in direct_sends.values()}
        waiting: set[int] = set()
        grad: bool | None = None

        def add(call: Call) -> None:
            self._calls.append(call)
            self._owners.append(position)

        for position, item in enumerate(self.segment.items):
            frees = self.segment.frees.get(position, ())
            if item.kernel is None:
                # A parameter that this segment goes on to write to would be taken back before it is read.
                stays = self._memory_of[item.inputs[0]] not in self.segment.writes
                if self.is_measured and stays and may_reside(self._step, item):
                    send = calls.send_parameter(item)
                else:
                    send = calls.send_value(item, by_message.get(item.index))
                waiting.add(self._memory_of[item.inputs[0]])
                add(calls.then_clear(send, frees) if frees else send)
                continue
            written = {self._memory_of[register] for register in item.writes}
            if written & waiting or (waiting and self.is_measured and self._costs[item.index] > HEAVY):
                add(calls.flush)
                waiting.clear()
            elif waiting and (not self.is_measured or self._costs[item.index] > QUICK):
                add(calls.flush_if_large)
            if item.kernel.grad is not grad:
                grad = item.kernel.grad
                add(calls.set_grad(grad))
            if not self.is_measured:
                add(self._checked[position])
            else:
                add(self._operation(item, item.kernel, frees, direct_sends.get(item.index)))

    def _operation(
        self, item: PlanItem, kernel: Kernel, frees: Sequence[int], direct: DirectSend | None
    ) -> Call:
        bare = kernel.bare(item.floats)
        if bare is None:
            return calls.then_clear(calls.run_checked(item), frees)
        self.counted.append(kernel.name)
        if direct is not None and bare.is_single:
            return calls.run_into_buffer(item, bare, frees, direct)
        return calls.run_bare(item, bare, frees)

    def run(self, replay: ReplayState) -> None:
        """Run the segment, and publish the values that are visible outside."""
        run, registers = SegmentRun(replay), replay.registers
        self._load(replay)
        position, begin = 0, 0
        if replay.faults or replay.failed_memory:
            self._run_unaffected(replay, run, 0)
        else:
            try:
                if self._trials_left:
                    for position in self._run_trial(registers, run):  # noqa: B007  (for an error)
                        pass
                else:
                    for call in self._calls:
                        call(registers, run)
                        position += 1
                    self.runs += 1
            except Exception as error:
                begin = self._fail(replay, position, error)
            if begin:
                self._run_unaffected(replay, run, begin)
        run.close()
        self._publish(replay)

    def _run_trial(self, registers: Registers, run: SegmentRun) -> Iterator[int]:
        """Make the calls, and time them; yields the position of each before it is made."""
        spent = [0.0] * len(self.segment.items)
        for position, call in enumerate(self._calls):
            yield position
            began = time.perf_counter()
            call(registers, run)
            spent[self._owners[position]] = time.perf_counter() - began
        first = self._trials_left == _TRIALS
        for item, seconds in zip(self.segment.items, spent, strict=True):
            self._costs[item.index] = seconds if first else min(seconds, self._costs[item.index])
        self._trials_left -= 1
        if not self._trials_left:
            self._build()

    def _load(self, replay: ReplayState) -> None:
        registers, values = replay.registers, replay.values
        for register in self.segment.loads:
            value = values[register]
            fault = value.fault or value.storage.fault
            if fault is not None:
                replay.faults[register] = fault
            registers[register] = value.tensor
        for register in self._written:
            values[register].storage.before_writing()
        for register in self.segment.releases:
            # Its borrowed buffer is acknowledged as soon as this segment is done.
            values[register].tensor = None

    def _publish(self, replay: ReplayState) -> None:
        values, registers = replay.values, replay.registers
        for register in self.segment.makes:
            if (value := values.get(register)) is not None:
                value.tensor = registers[register]
                value.fault = replay.faults.get(register)
        if replay.failed_memory:
            for register, value in values.items():
                if (fault := replay.failed_memory.get(self._memory_of[register])) is not None:
                    value.storage.fault = fault

    # --- after an error -----------------------------------------------------------------------------------
    def _fail(self, replay: ReplayState, position: int, error: Exception) -> int:
        """Record the exception of a call; returns the position of the next item."""
        owner = self._owners[position]
        self._add_fault(replay, self.segment.items[owner], error)
        return owner + 1

    def _add_fault(self, replay: ReplayState, item: PlanItem, error: Exception) -> None:
        name = "send" if item.kernel is None else item.kernel.name
        self._mark_failed(replay, item, replay.session.faults.add(name, item.site, error))

    def _mark_failed(self, replay: ReplayState, item: PlanItem, fault: Fault) -> None:
        for register in item.outputs:
            replay.faults[register] = fault
        for register in item.writes:
            replay.failed_memory[self._memory_of[register]] = fault

    def _run_unaffected(self, replay: ReplayState, run: SegmentRun, begin: int) -> None:
        """From an item on, run all that depends on no failed value."""
        run.flush()  # what was collected may be written to next, and none of the calls below flushes it
        for item, call in zip(self.segment.items[begin:], self._checked[begin:], strict=True):
            faults = (
                replay.faults.get(register) or replay.failed_memory.get(self._memory_of[register])
                for register in item.inputs
            )
            fault = next((each for each in faults if each is not None), None)
            if fault is not None:
                if item.kernel is None:
                    run.add(item.task, SentValue(item.there, replay.turn, None, fault), [])
                else:
                    self._mark_failed(replay, item, fault)
                continue
            try:
                call(replay.registers, run)
                run.flush()
            except Exception as error:
                self._add_fault(replay, item, error)
