"""Lines on their way from a task to the screen: whole, in order, and never blocking."""

from __future__ import annotations

import fcntl
import os
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.cluster.spec import Task
from argosy.launch.output import LineSplitter, Stream, TaskLog, prefix
from argosy.launch.screen import Screen

WORKER = Task("worker", 1)


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"x", b"\n"))))
def test_splitting_depends_on_the_bytes_and_not_on_the_chunks(chunks: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()
    whole = b"".join(chunks)
    expected = whole.split(b"\n")
    assert lines == (expected if expected[-1] else expected[:-1])


def test_carriage_returns_stay() -> None:
    assert LineSplitter().feed(b"\r10%\r20%\r\n") == [b"\r10%\r20%\r"]


def test_a_line_without_end_comes_in_pieces() -> None:
    splitter = LineSplitter(longest=10)
    assert splitter.feed(b"123456") == []
    assert splitter.feed(b"789abc") == [b"123456789abc"]
    assert splitter.finish() == []


def test_a_stream_ends_with_its_last_line() -> None:
    reader, writer = os.pipe()
    lines: list[bytes] = []
    stream = Stream(os.fdopen(reader, "rb", buffering=0), lines.extend)
    os.write(writer, b"one\ntwo")
    assert [stream.read(), stream.read()] == [True, False]
    assert lines == [b"one"]
    assert [stream.open] == [True]
    os.close(writer)
    assert [stream.read(), stream.open] == [False, False]
    assert lines == [b"one", b"two"]


def test_draining_does_not_wait_for_others_who_hold_the_pipe() -> None:
    reader, writer = os.pipe()
    lines: list[bytes] = []
    stream = Stream(os.fdopen(reader, "rb", buffering=0), lines.extend)
    os.write(writer, b"one\ntwo")
    stream.drain()
    assert lines == [b"one", b"two"]
    assert not stream.open
    stream.drain()
    os.close(writer)


def test_a_log_holds_everything_and_remembers_errors(tmp_path: Path) -> None:
    log = TaskLog(tmp_path / "worker-1.log", pytest.fail)
    log.write([b"out"], is_error=False)
    log.write([b"err \xff"], is_error=True)
    log.close()
    log.write([b"later"], is_error=True)
    assert (tmp_path / "worker-1.log").read_bytes() == b"out\nerr \xff\n"
    assert log.errors == ["err �", "later"]


def test_a_full_disk_costs_the_log_only_and_is_told_of() -> None:
    told: list[str] = []
    log = TaskLog(Path("/dev/full"), told.append)
    log.write([b"one"], is_error=True)
    log.write([b"two"], is_error=True)
    assert log.errors == ["one", "two"]
    assert told == ["cannot write /dev/full: No space left on device; the rest of it is not kept"]


def test_prefix() -> None:
    assert prefix(WORKER, coloured=False) == b"[/job:worker/task:1] "
    coloured = prefix(WORKER, coloured=True)
    assert b"[/job:worker/task:1]" in coloured
    assert coloured.endswith(b"\x1b[0m ")


@pytest.fixture
def file() -> Iterator[int]:
    with tempfile.TemporaryFile() as opened:
        yield opened.fileno()


@pytest.fixture
def small_pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    yield reader, writer
    for end in (reader, writer):
        os.close(end)


def test_output_and_errors_keep_their_order(file: int) -> None:
    duplicate = os.dup(file)
    screen = Screen(file, duplicate)
    screen.say("started")
    screen.relay(WORKER, [b"one", b"\xff" * 9000], is_error=False)
    screen.relay(WORKER, [b"two"], is_error=True)
    screen.warn("argosy: ended")
    screen.flush()
    os.close(duplicate)
    assert os.pread(file, 1 << 16, 0).split(b"\n") == [
        b"started",
        b"[/job:worker/task:1] one",
        b"[/job:worker/task:1] " + b"\xff" * 9000,
        b"[/job:worker/task:1] two",
        b"argosy: ended",
        b"",
    ]
    assert screen.waits_for is None


def test_a_reader_that_does_not_read_blocks_nobody(small_pipe: tuple[int, int]) -> None:
    screen = Screen(small_pipe[1], small_pipe[1])
    screen.relay(WORKER, [b"x" * (2 << 20)], is_error=False)
    before = screen.full
    screen.flush(seconds=0.01)
    assert (before, screen.full) == (True, False)
    assert screen.waits_for is None
    assert not screen.broken


def test_a_reader_that_has_gone_is_noticed() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    screen = Screen(writer, writer)
    screen.say("hello")
    screen.flush()
    os.close(writer)
    assert screen.broken
    screen.say("ignored")
    assert screen.waits_for is None


def test_no_status_line_without_a_terminal(file: int) -> None:
    screen = Screen(file, file)
    screen.show_status("2 workers running")
    screen.erase_status()
    assert screen.waits_for is None


def test_a_status_line_is_erased_by_the_next_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ours, terminal = os.openpty()
    screen = Screen(terminal, terminal)
    for _ in range(3):
        screen.show_status("2 workers running")
        screen.flush()
    screen.say("hello")
    screen.erase_status()
    screen.flush()
    shown = b""
    while not shown.endswith(b"\n"):
        shown += os.read(ours, 4096)
    assert shown == b"2 workers running\r\x1b[Khello\r\n"
    os.close(ours)
    os.close(terminal)


def test_a_view_of_several_lines_is_erased_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ours, terminal = os.openpty()
    screen = Screen(terminal, terminal)
    termios.tcsetwinsize(terminal, (24, 80))
    assert screen.room == (79, 23)
    screen.show_status("one\ntwo\nthree")
    screen.flush()
    screen.relay(WORKER, [b"hello"], is_error=False)
    screen.show_status("four")
    screen.flush()
    screen.erase_status()
    screen.flush()
    os.write(terminal, b"end\n")
    shown = b""
    while not shown.endswith(b"end\r\n"):
        shown += os.read(ours, 4096)
    prefixed = prefix(WORKER, coloured=True) + b"hello"
    # A view is never written while other lines wait: "four" had to wait for its turn.
    assert shown == b"one\r\ntwo\r\nthree\r\x1b[2A\x1b[J" + prefixed + b"\r\nend\r\n"
    os.close(ours)
    os.close(terminal)
