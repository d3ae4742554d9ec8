"""What is sent to another task is the value of that moment, whatever is written to the tensor afterwards."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

import torch

from argosy.cluster.spec import Address
from argosy.protocol.remote_work import Item, Parcel, Reply
from argosy.remote.operations.instructions import (
    DEFINE,
    EXPECT,
    FETCH,
    PROBE,
    PUT,
    REPORT,
    SEND,
    TENSOR,
    Result,
    Template,
)
from argosy.remote.task.client_session import ClientSession
from argosy.remote.transport.tensor_codec import pack, unpack

OTHER = "/job:worker/task:1"
LIMIT = 20.0  # seconds


class Around:
    """A session's host, in the hands of the test: nothing is copied before it leaves, as on one machine."""

    task = "/job:worker/task:0"

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[tuple[Reply, list[torch.Tensor]]] = queue.SimpleQueue()
        self.sent: dict[int, torch.Tensor] = {}
        self.collecting: list[Callable[[], None]] = []  # called as one value after the other is collected

    def device(self, name: str) -> torch.device:
        return torch.device(name)

    def answer(self, client: str, reply: Reply, frames: Sequence[torch.Tensor] = ()) -> None:
        self.answers.put((reply, list(frames)))

    def cut_off(self, client: str, reason: str) -> None:
        raise AssertionError(f"cut off: {reason}")

    def address(self, task: str) -> Address:
        raise AssertionError("every task is on this host")

    def forward(self, task: str, parcel: Parcel, frames: Sequence[torch.Tensor] = ()) -> None:
        raise AssertionError("every task is on this host")

    def sender_to(self, task: str) -> Around:
        if self.collecting:
            self.collecting.pop(0)()
        return self

    def send(self, parcel: Parcel, frames: Sequence[torch.Tensor]) -> None:
        for item, frame in zip(parcel.items, frames, strict=True):
            assert item.packing is not None
            self.sent[item.value] = unpack(item.packing, [frame]).clone()

    def ask(self, session: ClientSession, *records: object) -> list[torch.Tensor]:
        """Let records be carried out; the frames of the answer to the last of them."""
        session.work(list(records), ())
        reply, frames = self.answers.get(timeout=LIMIT)
        assert reply.fault is None
        return frames


@contextlib.contextmanager
def session_with(helpers: int) -> Iterator[tuple[ClientSession, Around]]:
    around = Around()
    session = ClientSession("client", around, helpers)
    session.exchange.sender_to = around.sender_to  # type: ignore[assignment, method-assign]
    try:
        yield session, around
    finally:
        session.close()
        session.join()


def doubling(number: int, known: bool = True) -> Template:
    """`mul_(2)`; not `known`: its results are told by running it."""
    results: tuple[Result, ...] | None = () if known else None
    return Template(number, "aten::mul_.Scalar", [[TENSOR], 2], {}, 1, 0, "cpu:0", (), results)


def arrives(session: ClientSession, *values: int) -> None:
    """Ones, from another task."""
    packed = [pack(torch.ones(3)) for _ in values]
    items = tuple(Item(value, 0, packing, None) for value, (packing, _) in zip(values, packed, strict=True))
    session.exchange.receive(Parcel("client", items), [frame for _, frames in packed for frame in frames])


def test_a_helper_does_not_write_to_what_has_not_left_yet() -> None:
    first, second, third, fourth = range(100, 104)
    with session_with(helpers=1) as (session, around):
        helped = threading.Semaphore(0)

        def done() -> None:
            helped.release()
            session.wake()

        session.scheduler.on_ready = done
        around.ask(session, DEFINE, doubling(0), REPORT, 1)
        session.templates[0].heavy = True  # as an operation that has taken long: for a helper
        expected = [part for value in (first, second, third, fourth) for part in (EXPECT, value, OTHER)]
        sends = [part for value in (first, second) for part in (SEND, value, OTHER, value + 100, -1)]
        writes = [part for value in (first, third, fourth) for part in (0, -1, 0, value)]
        around.ask(session, *expected, *sends, *writes, REPORT, 2)

        def let_the_helper_work() -> None:
            # The first value has been collected and not sent. A helper takes one operation after the other:
            # when it has done two, it would have done the one on the first value, had that been allowed.
            arrives(session, third, fourth)
            assert helped.acquire(timeout=LIMIT)
            assert helped.acquire(timeout=LIMIT)

        around.collecting = [lambda: None, let_the_helper_work]
        arrives(session, first, second)
        (frame,) = around.ask(session, FETCH, 3, [first])
        assert frame.view(torch.float32).tolist() == [2, 2, 2]
    assert around.sent[first + 100].tolist() == [1, 1, 1]
    assert around.sent[second + 100].tolist() == [1, 1, 1]


def test_an_operation_that_tells_its_results_does_not_either() -> None:
    packing, frames = pack(torch.ones(3))
    with session_with(helpers=0) as (session, around):
        around.ask(session, DEFINE, doubling(0, known=False), REPORT, 1)
        put = [PUT, 100, packing, 0, 1]
        session.work([*put, SEND, 100, OTHER, 200, -1, PROBE, 2, 0, 300, -1, [100], []], frames)
        reply, _ = around.answers.get(timeout=LIMIT)
        assert reply.fault is None
        (frame,) = around.ask(session, FETCH, 3, [100])
        assert frame.view(torch.float32).tolist() == [2, 2, 2]
    assert around.sent[200].tolist() == [1, 1, 1]
