"""Whatever strangers send to a server's port changes nothing, and the job goes on to the same result."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest
import zmq
from jobs import Jobs, jobs

from argosy.modes import Async
from argosy.protocol.asking import WaitingRequest
from argosy.protocol.header import Header, LogEntry, LogState
from argosy.protocol.joining import Fail, Hello, JobOver, Leave, OptimizerSpec, Register
from argosy.protocol.layout import Layout
from argosy.protocol.training import NormReport, Orders, PushRequest, Scale
from argosy.wire.message import encode

__all__ = ["jobs"]

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

# A greeting of ZeroMQ's protocol (version 3.0, mechanism NULL), and a READY command.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


def raw(port: int, *parts: bytes) -> None:
    """Send bytes to a port, and read a little of what comes back."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link, suppress(OSError):
        link.settimeout(0.02)
        for part in parts:
            link.sendall(part)
            with suppress(TimeoutError):
                link.recv(4096)


@contextmanager
def dealer(port: int) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.setsockopt(zmq.LINGER, 1000)
        sock.connect(f"tcp://127.0.0.1:{port}")
        yield sock
        sock.poll(20)


def messages() -> list[list[bytes]]:
    """Well-formed for ZeroMQ, and no message, or none that a stranger may send."""
    pack = msgspec.msgpack.encode
    overflow = {"type": "push", "seq": 1, "version": 0}
    register = Register(Layout(), OptimizerSpec("SGD", ()), Async())
    strangers: list[Header] = [
        PushRequest(1, 0),
        register,
        Leave(),
        Fail("I say so"),
        JobOver("/job:ps/task:0", "over"),
        LogEntry(1, 1, Orders(())),
        LogEntry(1, 1, Scale(1, 0.0)),
        LogEntry(1, 1, NormReport(1, 1e30)),
        LogState(1, 17, 3),
        WaitingRequest(1),
    ]
    return [
        [b""],
        [b"", b""],
        [b"\xc1"],
        [os.urandom(100)],
        [pack([overflow, [["float32", [2**40, 2**40, 2**40]]]]), b"1234"],
        [pack([overflow, [["float32", [2**62]]]]), b"1234"],
        [pack([overflow, [["float32", [-1]]]]), b"1234"],
        [pack([overflow, [["object", [1]]]]), b"1234"],
        [pack([overflow, [["float32", [1]]]]), b"123"],
        [pack([{"type": "nonsense"}, []])],
        [pack([{"type": "push", "seq": -1, "version": 0}, []])],
        [pack([{"type": "push", "seq": 2**64 - 1, "version": 0}, []])],
        [b"\x91" * 100_000],
        [pack([overflow, []]), *[b""] * 5000],
        *([bytes(part) for part in encode(header)] for header in strangers),
        [bytes(part) for part in encode(Hello("/job:worker/task:99", 2, 2, "stranger"))],
        [bytes(part) for part in encode(Hello("/job:worker/task:0", 2, 2, "stranger"))],
        [bytes(part) for part in encode(Hello("/job:worker/task:1", 9, 9, "stranger"))],
        [bytes(part) for part in encode(Hello("nobody", 2, 2, "stranger"))],
    ]


def attack(port: int) -> None:
    raw(port, os.urandom(1000))
    raw(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    raw(port, GREETING, READY, b"\x02" + struct.pack(">Q", 2**30) + b"x" * 1000)  # a frame of 1 GB
    raw(port, GREETING, READY, b"\x02" + struct.pack(">Q", 2**64 - 1))
    raw(port, GREETING, os.urandom(64))
    raw(port, b"")
    for parts in messages():
        with dealer(port) as sock:
            sock.send_multipart(parts)
    with dealer(port) as sock:  # many at once from one stranger
        for seed in range(50):
            sock.send_multipart([random.Random(seed).randbytes(50), b"x"])


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_garbage_changes_nothing(jobs: Jobs, mode: str) -> None:
    steps = 400
    job = jobs.launch(mode, steps, 0.02)
    for worker in (0, 1):
        job.until(f"/job:worker/task:{worker}", "step ")
    for server in (0, 1):
        attack(job.port(f"/job:ps/task:{server}"))
    assert f"step {steps}\n" not in job.launcher.out, "the job was over before the garbage came"
    job.hurry()
    assert job.wait() == 0, job
    for worker in (0, 1):
        done, at, least, most = job.lines(f"/job:worker/task:{worker}")[-1].split()
        assert (done, at) == ("done", str(steps))
        assert least == most, job  # all the weights have had the same updates
        if mode == "sync":
            assert float(least) == -1.5 * steps
        else:
            assert -2.0 * steps <= float(least) <= -1.0 * steps
