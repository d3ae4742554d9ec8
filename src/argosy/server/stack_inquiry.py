"""`argosy status --stacks`: the coordinator asks workers what they are doing, and waits for none of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec

from argosy.cluster.spec import ClusterSpec, Task
from argosy.errors import ConfigError
from argosy.protocol.asking import Stacks, StacksOffer, StacksRequest, StatusReport
from argosy.server.connected_tasks import ConnectedTasks
from argosy.wire.channel import Listener, Peer

# Who has not answered by then is stopped, or cut off.
ANSWERS_WITHIN = 1.0


@dataclass
class _Inquiry:
    answer: Callable[[StatusReport], object]
    report: StatusReport
    asked: dict[Peer, Task]
    began: float
    stacks: dict[Task, str] = field(default_factory=dict)


class StackInquiry:
    """Only the process of a task, known by its life to `connected`, speaks for it."""

    def __init__(self, cluster: ClusterSpec, listener: Listener, connected: ConnectedTasks) -> None:
        self._cluster = cluster
        self._listener = listener
        self._connected = connected
        self._offers: dict[Task, Peer] = {}
        self._open: list[_Inquiry] = []

    def offer(self, peer: Peer, header: StacksOffer) -> None:
        """A worker says where it can be asked."""
        try:
            task = self._cluster.require(Task.parse(header.task))
        except ConfigError:
            return
        if self._connected.is_life(task, header.life):
            self._offers[task] = peer
            self._connected.notice(peer, task)

    def begin(self, report: StatusReport, answer: Callable[[StatusReport], object]) -> None:
        """Ask those who are waited for, or all; `answer` gets the report with what they say."""
        waiting: Collection[str] = () if report.job is None else report.job.waiting
        tasks = [task for task in self._offers if not waiting or self._cluster.describe(task) in waiting]
        asked = {self._offers[task]: task for task in tasks}
        for peer in asked:
            self._listener.send(peer, StacksRequest())
        self._open.append(_Inquiry(answer, report, asked, time.monotonic()))

    def take(self, peer: Peer, header: Stacks) -> None:
        """A worker's answer."""
        for inquiry in self._open:
            if peer in inquiry.asked:
                inquiry.stacks[inquiry.asked[peer]] = header.text

    def look(self, now: float) -> None:
        """Answer where all have answered, or time is up."""
        for inquiry in list(self._open):
            if len(inquiry.stacks) == len(inquiry.asked) or now - inquiry.began > ANSWERS_WITHIN:
                self._open.remove(inquiry)
                self._answer(inquiry)

    def _answer(self, inquiry: _Inquiry) -> None:
        lines = list(inquiry.report.lines)
        for task in sorted(inquiry.asked.values()):
            text = inquiry.stacks.get(task)
            lines.append(f"{self._cluster.describe(task)} is in:" if text else f"{task} does not answer")
            lines += [f"    {_plain(line)}" for line in (text or "").splitlines()]
        inquiry.answer(msgspec.structs.replace(inquiry.report, lines=tuple(lines)))

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._open)


def _plain(line: str) -> str:
    """Without what a terminal would obey."""
    return "".join(each if each.isprintable() else "?" for each in line)
