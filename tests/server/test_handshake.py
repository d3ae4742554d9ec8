"""The same process over a new connection: it is let in again, unless the job goes on without it."""

from __future__ import annotations

import threading

import pytest

from argosy.cluster.spec import ClusterSpec, Task
from argosy.protocol.header import Header
from argosy.protocol.joining import Hello, Leave, Left, Refused, Welcome
from argosy.server.parameter_server import ParameterServer
from argosy.wire.channel import Channel
from argosy.wire.local_channel import LocalListener

SPEC = ClusterSpec({"ps": ["localhost:1"], "worker": ["localhost:2", "localhost:3"]})


def said(channel: Channel, header: Header) -> Header:
    channel.send(header)
    message = channel.receive(10.0)
    assert message is not None
    return message.header


@pytest.mark.timeout(60)
def test_a_process_that_counts_as_gone_is_not_taken_back_over_a_new_connection() -> None:
    listener = LocalListener()

    def no_other(task: Task) -> Channel:
        raise AssertionError(f"there is no {task}")

    server = ParameterServer(SPEC, 0, listener, no_other, 20.0)
    thread = threading.Thread(target=server.run, daemon=True)  # if the test fails, it never ends
    thread.start()
    hello = Hello("/job:worker/task:1", 1, 2, "its life")
    first, second = listener.connect(b"first"), listener.connect(b"second")
    assert isinstance(said(first, hello), Welcome)
    assert isinstance(said(second, hello), Welcome)
    first.close()  # it has another
    assert isinstance(said(second, hello), Welcome)
    second.close()  # its process has ended, as far as can be seen
    other = listener.connect(b"other")
    assert isinstance(said(other, Hello("/job:worker/task:0", 1, 2, "another's life")), Welcome)
    third = listener.connect(b"third")
    refused = said(third, hello)
    assert isinstance(refused, Refused)
    assert (refused.kind, refused.field) == ("lost", "/job:worker/task:1")
    assert isinstance(said(third, Hello("/job:worker/task:1", 1, 2, "its next life")), Welcome)
    for channel in (third, other):
        assert isinstance(said(channel, Leave()), Left)
    thread.join(20.0)
    assert not thread.is_alive()
