"""The live view on a terminal, the lines off one, and `argosy status`, of a job that trains."""

from __future__ import annotations

import codecs
import os
import re
import socket
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

import pytest
import torch
from terminal import Terminal

from argosy.cluster.discover import discover
from argosy.cluster.spec import Address, ClusterSpec
from argosy.entry import Replica
from argosy.launch.status_poller import LINE_EVERY, StatusPoller
from argosy.observe.journal import read
from argosy.observe.progress import Progress, Speedometer
from argosy.observe.view import render
from argosy.protocol.asking import JobStatus, StatusReport, WorkerStatus
from argosy.store.inquiry import query
from argosy.wire.channel import Delivery
from argosy.wire.zmq_channel import ZmqListener

TRAIN = """
import os, sys, time
import torch
import argosy

replica = argosy.join()
model = torch.nn.Linear(4, 3)
optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
with replica.session(model, optimizer, last_step=100000, directory=sys.argv[2]) as session:
    for step, _ in enumerate(session.batches(range(10**9))):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        session.log(loss=0.25)
        if step % 50 == 0:
            print(f"whole line {step} of worker {replica.index}", flush=True)
        time.sleep(0.002)
        if os.path.exists(sys.argv[1]):
            session.stop()
"""


def progress(
    step: int, *applied: int, waiting: tuple[str, ...] = (), last_step: int | None = 1000
) -> Progress:
    speedometer = Speedometer()
    for clock, share in ((0.0, 0), (2.0, 1)):
        workers = tuple(
            WorkerStatus(f"/job:worker/task:{index}", "in the job", count * share, numbers={"loss": 0.25})
            for index, count in enumerate(applied)
        )
        status = JobStatus(step * share, clock, "Async()", last_step, 0, workers, waiting, 7.0)
        found = speedometer.read(status, clock)
    return found


def shown(found: Progress | None, width: int = 100, height: int = 30) -> list[str]:
    terminal = Terminal()
    terminal.feed(render(found, "1 server, 2 workers running, 3 s", width, height).replace("\n", "\r\n"))
    return terminal.lines


def test_the_view_tells_how_far_how_fast_and_who_is_behind() -> None:
    lines = shown(progress(500, 300, 100, 100, waiting=("/job:worker/task:1 at a:1",)))
    assert lines == [
        "step  500 of 1000  " + "━" * 30 + "  50%  0:02 to go",
        "loss 0.2500   250.0 gradients/s  staleness 0.0",
        "  worker 0    150.0/s  staleness   0.0",
        "  worker 1     50.0/s  staleness   0.0  behind by 200",
        "  worker 2     50.0/s  staleness   0.0  behind by 200",
        "waiting for /job:worker/task:1 at a:1, 7 s",
        "1 server, 2 workers running, 3 s",
    ]


def test_of_many_workers_those_behind_are_shown() -> None:
    lines = shown(progress(500, *range(100, 400, 10)))
    assert len(lines) == 2 + 6 + 1 + 1
    assert lines[2].startswith("  worker 0     50.0/s  staleness   0.0  behind by 290")
    assert lines[8] == "  24 more      80.0 to 195.0/s"


def test_before_the_first_step_it_tells_who_runs() -> None:
    assert shown(None) == ["1 server, 2 workers running, 3 s"]


@pytest.mark.parametrize(("width", "height"), [(1, 1), (10, 3), (40, 2), (79, 23)])
def test_the_view_fits(width: int, height: int) -> None:
    lines = shown(progress(500, 300, 100, waiting=("/job:worker/task:1 at a:1",)), width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_off_a_terminal_a_line_comes_when_it_is_time_and_there_is_news(tmp_path: Path) -> None:
    poller = StatusPoller(ClusterSpec({"worker": ["localhost:1"]}), tmp_path / "status.json")
    poller.look(99.0)
    assert poller.line(100.0) is None
    poller.progress = progress(400, 250, 50)
    assert poller.line(100.0) is None
    assert poller.line(100.0 + LINE_EVERY) is None  # it is old by now, and the job perhaps over
    poller.progress = progress(500, 300, 100)
    assert poller.line(100.0 + LINE_EVERY) == (
        "step  500 of 1000  loss 0.2500    200.0 gradients/s  0:02 to go  worker 1 behind (50.0/s)"
    )
    poller.progress = progress(500, 300, 100)
    assert poller.line(200.0) is None  # the same step
    poller.progress = progress(600, 300, 200)
    assert poller.line(200.0) is not None
    poller.close()


def step_of(poller: StatusPoller) -> int | None:
    return None if poller.progress is None else poller.progress.step


def test_a_coordinator_that_died_is_asked_again_when_it_is_back(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as kept:  # as the launcher does
        address = Address(*kept.getsockname())
        poller = StatusPoller(ClusterSpec({"ps": [str(address)]}), tmp_path / "status.json")
        first = ZmqListener(address, listen_fd=os.dup(kept.fileno()))
        poller.look(100.0)
        assert isinstance(first.receive(10.0), Delivery)
        first.close()  # without an answer
        poller.look(100.5)
        second = ZmqListener(address, listen_fd=os.dup(kept.fileno()))
        poller.ask_again()
        poller.look(101.0)
        asked = second.receive(10.0)
        assert isinstance(asked, Delivery)
        second.send(asked.peer, StatusReport((), JobStatus(mode="Async", step=7, clock=1.0)))
        while poller.progress is None:
            poller.look(101.1)
        assert step_of(poller) == 7
        poller.close()
        second.close()


def test_without_servers_the_chief_leaves_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    poller = StatusPoller(ClusterSpec({"worker": ["localhost:1"]}), path)
    poller.look(100.0)
    assert step_of(poller) is None
    path.write_bytes(b"{")  # never seen half written, and if it were
    poller.look(101.0)
    monkeypatch.setenv("ARGOSY_STATUS_FILE", str(path))
    replica = Replica(discover({}, {}), None)
    model = torch.nn.Linear(2, 1)
    optimizer = replica.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
    with replica.session(model, optimizer, last_step=7) as session:
        for _ in session.batches(range(100)):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            session.log(loss=0.5)
    poller.look(101.5)  # too early
    assert step_of(poller) is None
    poller.look(102.0)
    assert step_of(poller) == 7
    assert poller.progress is not None
    assert poller.progress.numbers == {"loss": 0.5}
    poller.close()


@pytest.mark.processes
@pytest.mark.timeout(100)
def test_a_job_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (40, 100))
    words = ["-m", "argosy.cli", "run", "--workers", "2", str(tmp_path / "train.py"), str(tmp_path / "stop")]
    words.append(str(tmp_path / "run"))
    process = subprocess.Popen([sys.executable, *words], env=environ, stdout=theirs, stderr=theirs)
    os.close(theirs)
    terminal = Terminal()
    decoder = codecs.getincrementaldecoder("utf-8")()

    def more() -> bool:
        try:
            data = os.read(ours, 65536)
        except OSError:  # all of them have hung up
            return False
        terminal.feed(decoder.decode(data))
        return bool(data)

    try:
        moving = re.compile(r"loss 0\.2500 +[1-9]\d*\.\d gradients/s  staleness \d")
        while not any(moving.match(line) for line in terminal.lines):
            assert more(), terminal.lines
        assert [line for line in terminal.lines if re.match(r"step +\d+ of 100000  ━+ +\d+%", line)]
        address = next(re.search(r"task:0 pid \d+ at (\S+)", line) for line in terminal.lines if "ps" in line)
        assert address is not None
        told = query(address[1])
        assert re.search(r"^global step \d+ of 100000, mode Async", told)
        assert re.search(r"^/job:worker/task:1 at \S+: in the job, \d+ gradients, .*loss 0\.25", told, re.M)
        (tmp_path / "stop").touch()
        while more():
            pass
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    # Every line of a task is whole, and of the view nothing is left.
    of_tasks = r"\[/job:(ps|worker)/task:\d\] (whole line \d+ of worker \d|argosy: .*)"
    expected = rf"(started /job:\S+ pid \d+ at \S+|{of_tasks}|)"
    strange = [line for line in terminal.lines if not re.fullmatch(expected, line)]
    assert not strange
    assert sum("whole line" in line for line in terminal.lines) > 4
    events = list(read(tmp_path / "run"))
    assert [event["event"] for event in (events[0], *events[-2:])] == ["started", "ended", "saved"]
    assert [event["loss"] for event in events if "loss" in event][-1] == 0.25
    last = [event for event in events if event["event"] == "progress"][-1]
    assert [worker["gradients"] > 0 for worker in last["workers"].values()] == [True, True]
