"""The values that a session receives from other tasks and sends to them.

Values arrive in the session's thread from this host, in the server's thread from others, perhaps before the
instruction to expect them. Outgoing values are collected as long as one instruction to send follows another,
and leave in one message for each task.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from argosy.errors import WireError
from argosy.protocol.remote_work import Fault, Item, Packing, Parcel
from argosy.remote.task.scheduler import Storage, Value, WorkItem
from argosy.remote.transport.same_host import SameHostSender
from argosy.remote.transport.tensor_codec import frame_count, pack, unpack

if TYPE_CHECKING:
    from argosy.remote.task.client_session import ClientSession

Frames = Sequence[torch.Tensor]
# For each task, the values that go to it, and their bytes.
Outgoing = dict[str, tuple[list[Item], list[torch.Tensor]]]


class ValueExchange:
    """What one session expects and sends."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._expected: dict[tuple[int, int], tuple[Value, WorkItem, str]] = {}
        self._early: dict[tuple[int, int], tuple[Item, Frames]] = {}
        self._lost: set[str] = set()
        self.outgoing: Outgoing = {}
        # The work items that have added to it. They still read: no helper may write to their tensors yet.
        self.leaving: list[WorkItem] = []

    # --- receiving ------------------------------------------------------------------------------------------
    def receive(self, parcel: Parcel, frames: Frames) -> None:
        """Values from another task."""
        first = 0
        for item in parcel.items:
            last = first + (0 if item.packing is None else frame_count(item.packing))
            self._take_item(item, frames[first:last])
            first = last
        self._session.wake()

    def _take_item(self, item: Item, frames: Frames) -> None:
        key = (item.value, item.turn)
        with self._lock:
            found = self._expected.pop(key, None)
            if found is None:
                self._early[key] = (item, frames)
                return
        self._fill(found[0], item, frames)
        self._session.scheduler.finish(found[1])

    def lose_task(self, task: str) -> None:
        """A task is lost: what was expected from it fails."""
        with self._lock:
            self._lost.add(task)
            gone = [key for key, (_, _, source) in self._expected.items() if source == task]
            found = [self._expected.pop(key) for key in gone]
        for value, work, _ in found:
            value.fault = _loss(task)
            self._session.scheduler.finish(work)
        self._session.wake()

    # --- in the session's thread --------------------------------------------------------------------------
    def send_value(self, value: Value, task: str, there: int, site: int) -> None:
        """Send a value to another task as soon as it is computed."""
        work = WorkItem(lambda: self._send_value(value, task, there, site))
        work.sends = True
        self._session.submit(work, [value], [])

    def _send_value(self, value: Value, task: str, there: int, site: int) -> None:
        """Collect it; all that was collected leaves before anything is written to these tensors."""
        fault = value.fault or value.storage.fault
        packing: Packing | None = None
        frames: list[torch.Tensor] = []
        if fault is None:
            try:
                packing, frames = pack(value.tensor, copy=self.sender_to(task) is None)
            except Exception as error:
                fault = self._session.faults.add("send", site, error)
        items, all_frames = self.outgoing.setdefault(task, ([], []))
        items.append(Item(there, 0, packing, fault))
        all_frames += frames

    def flush(self) -> None:
        """Send what was collected; after that its tensors may be written to."""
        outgoing, self.outgoing = self.outgoing, {}
        self.send(outgoing)
        leaving, self.leaving = self.leaving, []
        for work in leaving:
            self._session.scheduler.finish(work)

    def send(self, outgoing: Outgoing) -> None:
        """Send values, from any thread; after that their tensors may be written to."""
        for task, (items, frames) in outgoing.items():
            parcel = Parcel(self._session.client, tuple(items))
            if (sender := self.sender_to(task)) is not None:
                sender.send(parcel, frames)
            else:
                self._session.owner.forward(task, parcel, frames)

    def sender_to(self, task: str) -> SameHostSender | None:
        """The connection to a task of this host; None if it is on another host, to which copies are sent."""
        return self._session.local.sender_to(task, lambda: self._session.owner.address(task))

    def expect(self, number: int, task: str, turn: int) -> Value:
        """A value that another task will send, or has sent already."""
        work = WorkItem()
        value = Value(Storage(work), work)
        with self._lock:
            early = self._early.pop((number, turn), None)
            if early is None and task not in self._lost:
                self._session.scheduler.expect(work)
                self._expected[number, turn] = (value, work, task)
                return value
        work.done = True
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
                    raise WireError("value from another task: expected a tensor or an error, got neither")
                value.tensor = unpack(item.packing, frames)
            except Exception as error:
                value.fault = self._session.faults.add("receive", -1, error)


def _loss(task: str) -> Fault:
    return Fault(task, "", -1, "TaskLost", f"{task} is lost, and a value that it was to send", lost=True)
