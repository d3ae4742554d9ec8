"""A whole server whose process ends and begins again: what it has told others, it still knows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import torch

from argosy.cluster.loss_policy import LossPolicy
from argosy.cluster.spec import ClusterSpec, Task
from argosy.protocol.header import Header
from argosy.protocol.joining import Admitted, Hello, JobOver, SlotValues, Welcome
from argosy.server.checkpointing import ShardSaving
from argosy.server.durable_memory import DurableMemory
from argosy.server.order_executor import OrderExecutor
from argosy.server.parameter_server import ParameterServer
from argosy.server.peer_links import PeerLinks
from argosy.server.step_making import StepMaking
from argosy.server.worker_requests import WorkerRequests
from argosy.wire.channel import Channel, Peer
from argosy.wire.local_channel import LocalListener
from argosy.wire.message import Message

ONE = ClusterSpec({"ps": ["a:1"], "worker": ["b:1"]})
TWO = ClusterSpec({"ps": ["a:1", "a:2"], "worker": ["b:1"]})
WORKER = Task("worker", 0)
View = Callable[[], DurableMemory]


@pytest.fixture
def view() -> Iterator[View]:
    """The memory of a server, as each of its processes sees it."""
    made = os.memfd_create("test")
    views: list[DurableMemory] = []

    def another() -> DurableMemory:
        views.append(DurableMemory(os.dup(made)))
        return views[-1]

    yield another
    os.close(made)
    for each in views:
        each.close()


class Watched(LocalListener):
    """Notes what is sent."""

    def __init__(self, happened: list[str]) -> None:
        super().__init__()
        self._happened = happened

    def send(self, peer: Peer, header: Header, tensors: Sequence[torch.Tensor] = ()) -> bool:
        self._happened.append("sent")
        return super().send(peer, header, tensors)


def nobody(task: Task) -> Channel:
    raise AssertionError(f"nobody is called, but {task} was")


def hello(memory: DurableMemory, life: str, happened: list[str] | None = None) -> Welcome:
    """A worker says hello to a process of the only server."""
    listener = Watched([] if happened is None else happened)
    losses = LossPolicy(max_restarts=3)
    server = ParameterServer(ONE, 0, listener, nobody, 5.0, memory=memory, losses=losses)
    channel = listener.connect(b"worker")
    channel.send(Hello(str(WORKER), 1, 1, life))
    server._step(listener.receive(1.0))
    message = channel.receive(0.0)
    assert message is not None
    assert isinstance(message.header, Welcome)
    return message.header


def test_what_is_sent_is_kept_before(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    commit = DurableMemory.commit

    def noted(self: DurableMemory) -> None:
        commit(self)
        happened.append("kept")

    monkeypatch.setattr(DurableMemory, "commit", noted)
    hello(view(), "first", happened)
    assert happened[0] == "kept"
    assert "sent" in happened


def test_a_worker_is_known_again_by_its_life(view: View) -> None:
    first = hello(view(), "first")
    assert hello(view(), "first").base_seq == first.base_seq
    assert hello(view(), "second").base_seq > first.base_seq  # another process in its place


def test_a_server_that_has_heard_of_the_end_does_not_wait_for_the_coordinator(view: View) -> None:
    """It was acknowledged, so the coordinator may have ended, and nobody says it again."""

    def process() -> ParameterServer:
        listener = LocalListener()
        return ParameterServer(TWO, 1, listener, lambda _: LocalListener().connect(b"1"), 5.0, memory=view())

    first = process()
    assert not first._job_end.is_over(0.0)
    first._obey(Task("ps", 0), JobOver())
    first._settle()
    assert process()._job_end.is_over(0.0)


def links(memory: DurableMemory) -> PeerLinks:
    return PeerLinks(TWO, Task("ps", 0), lambda _: LocalListener().connect(b"ps0"), False, memory, True)


def test_what_the_others_have_not_acknowledged_is_still_there(view: View) -> None:
    memory = view()
    first = links(memory)
    told = [Admitted(0, "first"), Admitted(0, "second")]
    for entry in told:
        first.tell(entry)
    first.keep()
    memory.commit()
    again = links(view())
    again.recall()
    assert list(again._log.after(0)) == [(1, told[0]), (2, told[1])]
    again.tell(Admitted(0, "third"))
    assert again._log.last == 3


def test_a_request_that_was_answered_is_not_done_again(view: View) -> None:
    given: list[str] = []

    def process(memory: DurableMemory) -> WorkerRequests:
        saving = ShardSaving(0, 1, memory)
        executor = OrderExecutor(
            0, lambda *_: None, lambda *_: None, lambda _: True, saving, 1, memory, lambda: None
        )
        executor.give = lambda message: given.append(message.header.name)  # type: ignore[method-assign]
        requests = WorkerRequests(ONE, executor, saving, None, memory)
        requests.recall()
        return requests

    memory = view()
    request = Message(SlotValues("exp_avg", (), number=3), [])
    answer = process(memory).answer(WORKER, request)
    memory.commit()
    assert process(view()).answer(WORKER, request) == answer
    assert given == ["exp_avg"]


class Noted:
    """Stands in for a part of a server, and notes what is called."""

    def __init__(self, name: str, happened: list[str]) -> None:
        self._name = name
        self._happened = happened

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self._happened.append(f"{self._name}.{name}")


def test_what_is_decided_is_kept_before_anybody_hears_of_it_and_before_it_is_done() -> None:
    happened: list[str] = []
    names = ("executor", "coordinator", "links", "status", "recovery")
    executor, coordinator, links, status, recovery = (cast(Any, Noted(name, happened)) for name in names)
    StepMaking(executor, coordinator, links, status, recovery).order([])
    kept = happened.index("recovery.keep")
    assert happened.index("executor.order") < kept < happened.index("links.flush")
    assert kept < happened.index("executor.carry_out")
