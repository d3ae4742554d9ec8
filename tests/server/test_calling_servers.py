"""How a server gets in touch with another: what was told before the welcome, and proofs that are lost."""

from __future__ import annotations

from argosy.cluster.spec import ClusterSpec, Task
from argosy.protocol.header import Header, LogEntry
from argosy.protocol.joining import Hello, Known, Welcome
from argosy.protocol.training import HeldNotice
from argosy.server.peer_links import PeerLinks
from argosy.wire.channel import Delivery
from argosy.wire.local_channel import LocalListener

CLUSTER = ClusterSpec({"ps": ["a:1", "b:1"], "worker": ["c:1"]})
ME = b"/job:ps/task:1"


def said(listener: LocalListener) -> list[Header]:
    """What has come to the coordinator's listener."""
    arrivals = iter(lambda: listener.receive(0.0), None)
    return [arrival.message.header for arrival in arrivals if isinstance(arrival, Delivery)]


def linked(listener: LocalListener) -> PeerLinks:
    return PeerLinks(CLUSTER, Task("ps", 1), lambda _: listener.connect(ME), use_lane=False)


def test_what_was_told_before_the_welcome_is_sent_with_it() -> None:
    coordinator = LocalListener()
    links = linked(coordinator)
    links.tell(HeldNotice(0, 1))
    links.flush()
    assert [type(header) for header in said(coordinator)] == [Hello]
    coordinator.send(ME, Known(b"x" * 16))
    coordinator.send(ME, Welcome())
    while links.advance():
        """Until nothing new has come."""
    assert links.ready
    assert said(coordinator) == [LogEntry(1, 1, HeldNotice(0, 1))]


def test_a_welcome_without_the_proof_is_not_enough() -> None:
    """The proof may be lost with a connection, and comes again with the next hello only."""
    coordinator = LocalListener()
    links = linked(coordinator)
    coordinator.send(ME, Welcome())
    while links.advance():
        """Until nothing new has come."""
    assert not links.ready
    assert links.missing() == [Task("ps", 0)]
    coordinator.send(ME, Known(b"x" * 16))
    while links.advance():
        """Until nothing new has come."""
    assert links.ready
