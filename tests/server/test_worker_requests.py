"""A request that changes something is done once, however often it is sent."""

from __future__ import annotations

from typing import Any, cast

import pytest

from argosy.cluster.spec import ClusterSpec, Task
from argosy.protocol.joining import GradientMemory, GradientMemorySeen, SlotValues
from argosy.server.durable_memory import OrdinaryMemory
from argosy.server.worker_requests import Request, WorkerRequests
from argosy.wire.message import Message

CHIEF = Task("worker", 0)


class Executor:
    """Notes what it is asked to do."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.pushes = self  # the part that keeps gradients

    def give(self, message: Message[Any]) -> None:
        self.done.append(message.header)

    def keep_gradient_memory(self, worker: int, tensors: object) -> None:
        self.done.append(worker)


@pytest.fixture
def executor() -> Executor:
    return Executor()


@pytest.fixture
def requests(executor: Executor) -> WorkerRequests:
    cluster = ClusterSpec({"ps": ["h:1"], "worker": ["h:2", "h:3"]})
    return WorkerRequests(cluster, cast("Any", executor), cast("Any", None), None, OrdinaryMemory())


def ask(requests: WorkerRequests, header: Request, task: Task = CHIEF) -> object:
    return requests.answer(task, Message(header, []))


def test_a_request_that_is_sent_again_gets_its_answer_and_is_not_done_again(
    requests: WorkerRequests, executor: Executor
) -> None:
    first, second = SlotValues("momentum", (), number=1), SlotValues("exp_avg", (), number=2)
    for header in (first, first, second, second):
        assert ask(requests, header) == GradientMemorySeen(header.number)
    assert executor.done == [first, second]


def test_memory_is_shown_to_every_process_of_a_server(requests: WorkerRequests, executor: Executor) -> None:
    for _ in range(2):
        ask(requests, GradientMemory(number=1))
    assert executor.done == [0, 0]


def test_numbers_of_one_worker_are_not_those_of_another(requests: WorkerRequests, executor: Executor) -> None:
    ask(requests, SlotValues("momentum", (), number=1))
    ask(requests, GradientMemory(number=1), Task("worker", 1))
    ask(requests, SlotValues("momentum", (), number=1))
    assert len(executor.done) == 2
