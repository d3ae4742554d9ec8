"""What a worker says while it waits, by the clock: who is waited for, and which servers do not answer."""

from __future__ import annotations

import msgspec
import pytest

from argosy.cluster.lease import Lease
from argosy.cluster.spec import ClusterSpec
from argosy.protocol.training import Gathered, GatherRequest
from argosy.store import conversation
from argosy.store.conversation import Conversation, Wait
from argosy.wire.channel import Delivery
from argosy.wire.local_channel import LocalListener

NAMES = ["server 0", "server 1"]


class Clock:
    """Stands where it is put."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(conversation, "time", made)
    return made


def play(clock: Clock, seconds: float, answers: set[int]) -> list[int]:
    """A wait of so long, in which only these servers answer when they are asked; when it asks."""
    wait, asked = Wait(clock.now), []
    end = clock.now + seconds
    while clock.now < end:
        if wait.asks({0, 1}):
            asked.append(clock.now - 100)
            for server in answers:
                wait.answered(server)
        wait.name_silent(NAMES)
        assert 0 <= wait.left <= 1
        clock.now += max(0.001, wait.left)
    return [round(at) for at in asked]


def test_servers_that_do_not_answer_are_named_every_5_s(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(clock, 17.0, answers={0}) == [5, 10, 15]
    assert capsys.readouterr().err.splitlines() == [
        f"argosy: still waiting for server 1, {seconds} s" for seconds in (6, 11, 16)
    ]


def test_servers_that_answer_are_not_named(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    play(clock, 30.0, answers={0, 1})
    assert capsys.readouterr().err == ""


def test_nobody_is_named_twice_at_a_time(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """The coordinator names a server that is silent, and this worker has asked it itself."""
    wait = Wait(clock.now)
    clock.now += 5
    assert wait.asks({0, 1})
    wait.answered(0)
    wait.name("server 1", 7.0)
    clock.now += 1
    wait.name_silent(NAMES)
    clock.now += 4
    assert wait.asks({0, 1})
    wait.name("server 1", 12.0)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"argosy: still waiting for server 1, {seconds} s" for seconds in (7, 12)]


def test_the_answer_to_an_earlier_request_is_not_taken_for_this_ones() -> None:
    """It answers a request that was repeated, and comes when the next one has been sent."""
    server = LocalListener()
    channel = server.connect(b"me")
    cluster = ClusterSpec({"ps": ["h:1"], "worker": ["h:2"]})
    talk = Conversation(cluster, [channel], Lease(15.0))
    sent = channel.send

    def late(header: Gathered, tensors: object = ()) -> None:
        """The server answers the request before, once more, and then this one."""
        sent(header)
        arrival = server.receive(5.0)
        assert isinstance(arrival, Delivery)
        for number in (header.number - 1, header.number):
            server.send(arrival.peer, Gathered(number, {0: msgspec.Raw(bytes([number]))}))

    channel.send = late  # type: ignore[method-assign,assignment]
    for number in (1, 2, 3):
        answer = talk.request(0, GatherRequest(0, msgspec.Raw(b"\x00")), Gathered)
        assert answer.header.values == {0: msgspec.Raw(bytes([number]))}
