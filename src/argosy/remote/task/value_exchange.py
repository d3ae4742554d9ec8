"""A session's mail: values that come from other tasks, and those that go to them.

Parcels arrive in the session's thread from this machine, in the host's from others, perhaps before the record
that says to expect them. What goes out is
collected as long as one value after the other is to be sent, and leaves in one message a task.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from argosy.errors import WireError
from argosy.protocol.remote_work import Fault, Item, Packing, Parcel
from argosy.remote.task.scheduler import Group, Step, Value
from argosy.remote.transport.same_host import Lane
from argosy.remote.transport.tensor_codec import frame_count, pack, unpack

if TYPE_CHECKING:
    from argosy.remote.task.client_session import Session

Frames = Sequence[torch.Tensor]
# For each task, what goes to it and the bytes of that.
Outgoing = dict[str, tuple[list[Item], list[torch.Tensor]]]


class Mail:
    """What one session expects, and what it sends."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._expected: dict[tuple[int, int], tuple[Value, Step, str]] = {}
        self._early: dict[tuple[int, int], tuple[Item, Frames]] = {}
        self._lost: set[str] = set()
        self.outgoing: Outgoing = {}
        # The steps that have added to it. They still read: a helper must not write to their tensors yet.
        self.leaving: list[Step] = []

    # --- when something comes -------------------------------------------------------------------------------
    def parcel(self, parcel: Parcel, frames: Frames) -> None:
        """Values from another task."""
        first = 0
        for item in parcel.items:
            last = first + (0 if item.packing is None else frame_count(item.packing))
            self._take_item(item, frames[first:last])
            first = last
        self._session.nudge()

    def _take_item(self, item: Item, frames: Frames) -> None:
        key = (item.value, item.turn)
        with self._lock:
            found = self._expected.pop(key, None)
            if found is None:
                self._early[key] = (item, frames)
                return
        self._fill(found[0], item, frames)
        self._session.graph.finish(found[1])

    def bereft(self, task: str) -> None:
        """A task has gone: what was expected of it fails."""
        with self._lock:
            self._lost.add(task)
            gone = [key for key, (_, _, sender) in self._expected.items() if sender == task]
            found = [self._expected.pop(key) for key in gone]
        for value, step, _ in found:
            value.fault = _loss(task)
            self._session.graph.finish(step)
        self._session.nudge()

    # --- in the session's thread --------------------------------------------------------------------------
    def hand_over(self, value: Value, task: str, there: int, site: int) -> None:
        """Give a value to another task, when it is there."""
        step = Step(lambda: self._hand_over(value, task, there, site))
        step.sends = True
        self._session.submit(step, [value], [])

    def _hand_over(self, value: Value, task: str, there: int, site: int) -> None:
        """Added to what goes to that task; all of it leaves before anything is written to these tensors."""
        fault = value.fault or value.group.fault
        packing: Packing | None = None
        frames: list[torch.Tensor] = []
        if fault is None:
            try:
                packing, frames = pack(value.tensor, copy=self.lane(task) is None)
            except Exception as error:
                fault = self._session.faults.add("send", site, error)
        items, bytes_of_them = self.outgoing.setdefault(task, ([], []))
        items.append(Item(there, 0, packing, fault))
        bytes_of_them += frames

    def send_parcels(self) -> None:
        """Send what was collected; from now on its tensors may be written to."""
        outgoing, self.outgoing = self.outgoing, {}
        self.dispatch(outgoing)
        leaving, self.leaving = self.leaving, []
        for step in leaving:
            self._session.graph.finish(step)

    def dispatch(self, outgoing: Outgoing) -> None:
        """Send values, of any thread; their tensors may be written to afterwards."""
        for task, (items, frames) in outgoing.items():
            parcel = Parcel(self._session.client, tuple(items))
            if (lane := self.lane(task)) is not None:
                lane.send(parcel, frames)
            else:
                self._session.host.forward(task, parcel, frames)

    def lane(self, task: str) -> Lane | None:
        """The short way to a task, if there is one; else tensors are sent later, from a copy."""
        return self._session.neighbours.lane(task, lambda: self._session.host.address(task))

    def await_parcel(self, number: int, task: str, turn: int) -> Value:
        """A value that another task sends, perhaps already has sent."""
        step = Step(_nothing)
        value = Value(Group(step), step)
        with self._lock:
            early = self._early.pop((number, turn), None)
            if early is None and task not in self._lost:
                self._session.graph.expect(step)
                self._expected[number, turn] = (value, step, task)
                return value
        step.done = True
        if early is not None:
            self._fill(value, *early)
        else:
            value.fault = _loss(task)
        return value

    def _fill(self, value: Value, item: Item, frames: Frames) -> None:
        value.fault = item.fault
        if item.fault is None:
            try:
                if item.packing is None:
                    raise WireError("parcel: expected a tensor or a fault, got neither")
                value.tensor = unpack(item.packing, frames)
            except Exception as error:
                value.fault = self._session.faults.add("receive", -1, error)


def _loss(task: str) -> Fault:
    return Fault(task, "", -1, "TaskLost", f"{task} has gone, and with it what it was to send", lost=True)


def _nothing() -> None:
    pass
