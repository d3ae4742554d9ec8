"""The coordinator and who is connected to it: what follows when somebody leaves, comes again, or is slow."""

from __future__ import annotations

import time

import msgspec
import pytest

from argosy.cluster.lease import Lease
from argosy.cluster.spec import ClusterSpec, Task
from argosy.protocol.header import Header
from argosy.protocol.joining import Hello
from argosy.protocol.training import Gathered, GatherRequest
from argosy.server.connected_tasks import ConnectedTasks
from argosy.server.coordinator import Coordinator

FIRST = msgspec.Raw(msgspec.msgpack.encode("first"))


def coordinator(workers: int) -> tuple[Coordinator, list[tuple[int, Header]]]:
    """With these workers in the job; and what it tells them."""
    told: list[tuple[int, Header]] = []
    made = Coordinator(
        1, workers, lambda worker, header: told.append((worker, header)), lambda _: None, lambda _: None
    )
    for worker in range(workers):
        made.arrive(worker, again=False)
    return made, told


@pytest.mark.parametrize("how", ["finish", "lose"])
def test_a_gather_takes_place_when_the_one_it_waits_for_has_left(how: str) -> None:
    made, told = coordinator(3)
    made.gather(0, GatherRequest(1, FIRST))
    made.gather(1, GatherRequest(1, FIRST))
    assert told == []
    getattr(made, how)(2)
    met = Gathered(1, {0: FIRST, 1: FIRST})
    assert told == [(0, met), (1, met)]
    made.arrive(2, again=False)
    assert made.gather_base(2) == 1


# --- who is connected -------------------------------------------------------------------------------------
CLUSTER = ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "b:2"]})
WORKER = Task("worker", 1)


def greeted(*peers: bytes, life: str = "one") -> ConnectedTasks:
    """Where one process has come over these connected_tasks, one after the other."""
    made = ConnectedTasks(CLUSTER, Task("ps", 0), lambda _: True, Lease(10.0))
    for number, peer in enumerate(peers):
        assert made.greet(peer, Hello(str(WORKER), 1, 2, life), WORKER) == (number > 0)
    return made


def never(_: bytes) -> bool:
    return False


def always(_: bytes) -> bool:
    return True


def gone_at(made: ConnectedTasks, seconds: float, reaches: bool = False, still: bool = False) -> list[Task]:
    """Who is given up so many seconds from now."""
    now = time.monotonic() + seconds
    return made.overdue(now, always if reaches else never, always if still else never)


def test_the_end_of_an_older_connection_is_not_the_end_of_the_newer_one() -> None:
    made = greeted(b"network", b"lane")
    made.depart(b"network", final=False)
    assert gone_at(made, 99.0) == []
    assert (made.peer(WORKER), made.task(b"lane"), made.task(b"network")) == (b"lane", WORKER, None)
    made.depart(b"lane", final=True)
    assert gone_at(made, 0.0) == [WORKER]
    assert gone_at(made, 0.0) == []


def test_a_broken_connection_is_forgiven_while_the_lease_runs() -> None:
    made = greeted(b"network")
    made.depart(b"network", final=False)
    assert gone_at(made, 9.0) == []
    assert gone_at(made, 11.0) == [WORKER]
    assert made.given_up(b"network") == WORKER


def test_who_is_there_again_without_a_word_keeps_the_lease() -> None:
    """It is counted from the last time that it could be reached."""
    made = greeted(b"network")
    made.depart(b"network", final=False)
    assert gone_at(made, 9.0, reaches=True) == []
    assert gone_at(made, 18.0) == []
    assert gone_at(made, 20.0) == [WORKER]


def test_who_stands_still_loses_the_lease() -> None:
    """Unless it goes on in time."""
    made = greeted(b"lane")
    assert gone_at(made, 0.0, still=True) == []
    assert gone_at(made, 9.0, still=True) == []
    made.heard(b"lane", WORKER)
    assert gone_at(made, 12.0) == []
    assert gone_at(made, 20.0, still=True) == []
    assert gone_at(made, 31.0, still=True) == [WORKER]


def test_who_speaks_again_is_not_gone() -> None:
    made = greeted(b"network")
    made.depart(b"network", final=False)
    made.heard(b"network", WORKER)
    assert gone_at(made, 99.0) == []
    assert made.peer(WORKER) == b"network"
